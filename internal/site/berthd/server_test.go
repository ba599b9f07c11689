package berthd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/testutil"
)

// Connections that users keep open do not block root or other users.
func TestAUserCannotKeepOthersOut(t *testing.T) {
	var all clientLimits
	s := entrance{&all}
	const bob, alice, others = 1001, 1000, 2000
	for range maxOfOne {
		if !s.enter(bob) {
			t.Fatal("bob has fewer connections than one may have")
		}
	}
	if s.enter(bob) {
		t.Error("bob has one more than one may have")
	}
	if !s.enter(alice) {
		t.Error("bob keeps alice out")
	}
	served := maxOfOne + 1
	for uid := uint32(others); s.enter(uid); uid++ {
		served++
	}
	if served != maxClients {
		t.Errorf("%d are served, want %d", served, maxClients)
	}
	if !s.enter(0) {
		t.Error("they keep root out")
	}
	s.leave(0)
	s.leave(bob)
	if !s.enter(bob) || s.enter(alice) {
		t.Error("there is not one place more than before")
	}
}

// entrance hides the first result of enter from tests that never call leave.
type entrance struct{ *clientLimits }

func (e entrance) enter(uid uint32) bool {
	_, entered := e.clientLimits.enter(uid)
	return entered
}

// A user with subordinate numbers gets as many connections with all of them and his
// own number as any other user.
func TestSubordinateNumbersAreOneUser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subuid")
	number := func(name string) (uint32, bool) { return 1001, name == "bob" }
	all := clientLimits{subordinates: subordinates{path: path, number: number}}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("# owners\nbob:100000:65536\nodd:0:4294967295\nodd:7\nodd:x:1\n1002:165536:65536\nldap:300000:10\nbob:400000:10\nldap:500000:10\n0:600000:10\n")
	if user, entered := all.enter(1001); !entered || user != 1001 {
		t.Fatalf("bob is counted as %d, and enters: %t", user, entered)
	}
	for i := range uint32(maxOfOne - 1) {
		if user, entered := all.enter(100000 + i); !entered || user != 1001 {
			t.Fatalf("number %d is counted as %d, and enters: %t", 100000+i, user, entered)
		}
	}
	for _, another := range []uint32{1001, 165535, 400003} {
		if _, entered := all.enter(another); entered {
			t.Errorf("%d, another number of bob's, enters", another)
		}
	}
	for other, account := range map[uint32]uint32{1003: 1003, 99999: 99999, 165536: 1002, 231072: 231072, 300009: 300000, 500009: 300000, 600001: 600000} {
		if user, entered := all.enter(other); !entered || user != account {
			t.Errorf("%d is counted as %d, and enters: %t", other, user, entered)
		}
	}
	write("")
	if user, entered := all.enter(165535); !entered || user != 165535 {
		t.Errorf("the file is empty: %d is counted as %t", user, entered)
	}
	all.leave(1001)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if user, entered := all.enter(100000); !entered || user != 100000 {
		t.Errorf("there is no file: counted as %d, enters: %t", user, entered)
	}
}

// Requests that users can repeat at will are not logged: their own requests, requests
// of berth-session, which is root, and invalid messages.
func TestUsersDoNotFillTheLog(t *testing.T) {
	for _, question := range []struct {
		text   []byte
		uid    uint32
		logged bool
	}{
		{siteconf.Message{Verb: siteconf.VerbAttach}.Encode(), 1001, false},
		{siteconf.Message{Verb: siteconf.VerbLogin, Fields: map[string]string{"uid": "1001"}}.Encode(), 0, false},
		{[]byte{}, 0, false},
		{siteconf.Message{Verb: siteconf.VerbAttach}.Encode(), 0, true},
	} {
		for _, reads := range []bool{true, false} {
			var log bytes.Buffer
			d := newDaemon(siteconf.Config{}, "n1", netip.Addr{}, nil, nil, slog.New(slog.NewTextHandler(&log, nil)))
			asker, asked := socketPair(t)
			if _, err := asker.Write(question.text); err != nil {
				t.Fatal(err)
			}
			if err := asker.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if !reads {
				asker.Close()
			}
			d.server.answer(t.Context(), asked, &unix.Ucred{Uid: question.uid})
			if logged := strings.Contains(log.String(), "refuse"); logged != question.logged {
				t.Errorf("%q of %d: %s", question.text, question.uid, log.String())
			}
			if !question.logged && log.Len() > 0 {
				t.Errorf("%q of %d: %s", question.text, question.uid, log.String())
			}
			asker.Close()
			asked.Close()
		}
	}
}

// A user who starts sessions endlessly blocks only his own.
func TestAUserCannotKeepOthersSessionsOut(t *testing.T) {
	d := newDaemon(siteconf.Config{}, "n1", netip.Addr{}, nil, nil, slog.New(slog.DiscardHandler))
	login := func(uid string) error {
		_, err := d.do(t.Context(), &unix.Ucred{Pid: int32(os.Getpid())}, siteconf.Message{Verb: siteconf.VerbLogin, Fields: map[string]string{"uid": uid}}, map[string]string{})
		return err
	}
	for range maxLogins {
		if !d.sessions.starting.enter(1001) {
			t.Fatal("bob has fewer than one may have")
		}
	}
	if err := login("1001"); err == nil || !strings.Contains(err.Error(), "64 sessions of yours begin on n1 at once") {
		t.Errorf("one more of bob's: %v", err)
	}
	for range 2 * maxLogins {
		if err := login("1000"); err == nil || !strings.Contains(err.Error(), "you have no job on n1") {
			t.Fatalf("one of alice's: %v", err)
		}
	}
	d.sessions.starting.leave(1001)
	if err := login("1001"); err == nil || !strings.Contains(err.Error(), "you have no job on n1") {
		t.Errorf("one of bob's has begun: %v", err)
	}
}

// Set-user-ID programs connect as root but count for their user. Only a limited
// number of silent ones is kept.
func TestBerthSessionsThatSayNothingAreCounted(t *testing.T) {
	testutil.Require(t, testutil.Root)
	run := t.TempDir()
	listener, err := listen(run)
	if err != nil {
		t.Fatal(err)
	}
	d := newDaemon(siteconf.Config{}, "n1", netip.Addr{}, nil, nil, slog.New(slog.DiscardHandler))
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- d.server.serve(ctx, listener) }()
	defer func() {
		end()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()

	// As with a set-user-ID program: bob has started it, and it runs as root.
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), "setpriv", "--ruid", "1001", program)
	command.Env = append(os.Environ(), silentAt+"="+filepath.Join(run, siteconf.Socket))
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil || string(out) != fmt.Sprint(maxBegun) {
		t.Errorf("%s of bob's are kept, want %d; %v", out, maxBegun, err)
	}
}

// silentAt is the variable with the path of the socket that this program connects to
// silently.
const silentAt = "BERTHD_TEST_SILENT"

// beSilent connects more often than a user may, and prints how many connections get an
// answer. It ends its silence when the others have been closed.
func beSilent(path string) error {
	const refusals = 20
	answered := make(chan bool)
	var conns []*net.UnixConn
	for range maxBegun + refusals {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		defer conn.Close()
		conns = append(conns, conn)
		go func() {
			n, _ := conn.Read(make([]byte, 1))
			answered <- n > 0
		}()
	}
	served, refused := 0, 0
	for range conns {
		if <-answered {
			served++
			continue
		}
		if refused++; refused == refusals {
			for _, conn := range conns {
				_ = conn.CloseWrite()
			}
		}
	}
	fmt.Print(served)
	return nil
}

func TestTheLogHasAComplaintOnceAMinute(t *testing.T) {
	var said complaint
	begin := time.Now()
	full, other := errors.New("too many open files"), errors.New("no memory")
	for i, step := range []struct {
		err   error
		after time.Duration
		news  bool
	}{{full, 0, true}, {full, 30 * time.Second, false}, {other, 31 * time.Second, true}, {full, 32 * time.Second, true}, {full, 91 * time.Second, false}, {full, 92 * time.Second, true}} {
		if news := said.isNews(step.err, begin.Add(step.after)); news != step.news {
			t.Errorf("%d: %v after %s is news: %t", i, step.err, step.after, news)
		}
	}
}

func socketPair(t *testing.T) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns []*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), fmt.Sprintf("end %d", i))
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn.(*net.UnixConn))
	}
	return conns[0], conns[1]
}
