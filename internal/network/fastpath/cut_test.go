package fastpath

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

func TestBrokenConnectionReportsErrorToBothEnds(t *testing.T) {
	if err := testutil.SetUpLink("lo"); err != nil {
		t.Fatal(err)
	}
	broken, other := connectedPair(t)
	raw, err := broken.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a policy may change again before the programs have noticed
		if err := errors.Join(raw.Control(func(fd uintptr) { err = resetConn(int(fd)) }), err); err != nil {
			t.Fatal(err)
		}
	}
	for name, end := range map[string]*net.TCPConn{"the end that was broken": broken, "the other end": other} {
		if _, err := end.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s reads: %v", name, err)
		}
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
