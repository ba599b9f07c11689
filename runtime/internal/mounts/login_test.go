package mounts

import (
	"log/slog"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/lazy"
	"berth.dev/berth/runtime/internal/linux"
)

func connected(t *testing.T) (one, other *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends []*net.UnixConn
	for _, fd := range fds {
		conn, err := Conn(fd)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		ends = append(ends, conn)
	}
	return ends[0], ends[1]
}

// A login that was handed over once is known, also to a successor, and is in no
// message but as a descriptor.
func TestLoginsOutliveTheServer(t *testing.T) {
	asking, requests := connected(t)
	keeping, holder := connected(t)
	s := NewServer(requests, holder, slog.New(slog.DiscardHandler), func(string) {})
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context()) }()
	c := NewClient(asking)
	login := lazy.Login{User: "alice", Secret: "secret-word"}
	name, err := c.Login(t.Context(), login)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Login(t.Context(), login); again != name || err != nil {
		t.Errorf("the same login is %s and %s, %v", name, again, err)
	}
	if other, err := c.Login(t.Context(), lazy.Login{Secret: "token"}); other == name || err != nil {
		t.Errorf("another login is %s, %v", other, err)
	}
	if got, known := s.login(name); got != login || !known {
		t.Errorf("%t %v", known, got)
	}
	if _, known := s.login("nobody's"); known {
		t.Error("a login that nobody has handed over is known")
	}
	var kept keptMessage
	files, err := linux.ReceivePacket(keeping, &kept)
	if err != nil || len(files) != 1 || kept.ID != name {
		t.Fatalf("kept %+v with %d files, %v", kept, len(files), err)
	}
	asking.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	next, end := connected(t)
	for _, message := range []struct {
		kept  keptMessage
		files []*os.File
	}{{kept, files}, {keptMessage{}, nil}} {
		if err := linux.SendPacket(next, message.kept, message.files...); err != nil {
			t.Fatal(err)
		}
	}
	linux.CloseAll(files)
	s = NewServer(nil, end, slog.New(slog.DiscardHandler), func(string) {})
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	if got, known := s.login(name); got != login || !known {
		t.Errorf("the successor: %t %v", known, got)
	}
}
