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

	"berth.dev/berth/internal/site/berthd/limits"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/testutil"
)

// Requests that users can repeat at will are not logged: their own requests, requests
// of berth-session, which is root, and invalid messages.
func TestUsersCannotFillLog(t *testing.T) {
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

// A user who starts sessions endlessly blocks no sessions of others.
func TestUserCannotBlockOthersSessions(t *testing.T) {
	d := newDaemon(siteconf.Config{}, "n1", netip.Addr{}, nil, nil, slog.New(slog.DiscardHandler))
	login := func(uid string) error {
		_, err := d.do(t.Context(), &unix.Ucred{Pid: int32(os.Getpid())}, siteconf.Message{Verb: siteconf.VerbLogin, Fields: map[string]string{"uid": uid}}, map[string]string{})
		return err
	}
	for range limits.MaxStarting {
		if !d.sessions.starting.Enter(1001) {
			t.Fatal("bob has fewer than one may have")
		}
	}
	if err := login("1001"); err == nil || !strings.Contains(err.Error(), "64 sessions of yours begin on n1 at once") {
		t.Errorf("one more of bob's: %v", err)
	}
	for range 2 * limits.MaxStarting {
		if err := login("1000"); err == nil || !strings.Contains(err.Error(), "you have no job on n1") {
			t.Fatalf("one of alice's: %v", err)
		}
	}
	d.sessions.starting.Leave(1001)
	if err := login("1001"); err == nil || !strings.Contains(err.Error(), "you have no job on n1") {
		t.Errorf("one of bob's has begun: %v", err)
	}
}

// Set-user-ID programs connect as root but count for their user. Only a limited
// number of silent ones is kept.
func TestSilentSessionsAreCounted(t *testing.T) {
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
	if err != nil || string(out) != fmt.Sprint(limits.MaxBegun) {
		t.Errorf("%s of bob's are kept, want %d; %v", out, limits.MaxBegun, err)
	}
}

// TestMain also makes this program a client of berthd.
func TestMain(m *testing.M) {
	if path := os.Getenv(silentAt); path != "" {
		if err := beSilent(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
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
	for range limits.MaxBegun + refusals {
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

func TestComplaintIsLoggedOncePerMinute(t *testing.T) {
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
