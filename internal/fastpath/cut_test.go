package fastpath

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

func TestBothEndsOfABrokenConnectionAreToldOfAnError(t *testing.T) {
	if err := testutil.SetUpLink("lo"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		breakOff func(socket int) error
		want     error // of the end that was broken
	}{
		"disconnected": {breakOff, unix.ECONNRESET},
		"starved":      {starve, unix.ETIMEDOUT},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broken, other := connectedPair(t)
			raw, err := broken.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(raw.Control(func(fd uintptr) { err = c.breakOff(int(fd)) }), err); err != nil {
				t.Fatal(err)
			}
			if _, err := broken.Read(make([]byte, 1)); !errors.Is(err, c.want) {
				t.Errorf("the end that was broken reads: %v", err)
			}
			if _, err := other.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the other end reads: %v", err)
			}
		})
	}
}

func connectedPair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialled, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close() })
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}
