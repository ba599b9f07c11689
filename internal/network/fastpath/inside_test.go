package fastpath

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// TestDescriptorsOfBrokenMessageAreClosed: what comes after the descriptors is not one
// of the known kinds of message.
func TestDescriptorsOfBrokenMessageAreClosed(t *testing.T) {
	sent, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	message := append(unix.UnixRights(sent), unix.UnixCredentials(&unix.Ucred{})...)
	if fds, err := passed(message); err == nil || len(fds) > 0 {
		t.Errorf("got %v, %v", fds, err)
	}
	if _, err := unix.FcntlInt(uintptr(sent), unix.F_GETFD, 0); err != unix.EBADF {
		unix.Close(sent)
		t.Errorf("the descriptor is open: %v", err)
	}
}

// TestProcessIsInspectedFromInside asks about this process what the Switch
// reads itself where it may.
func TestProcessIsInspectedFromInside(t *testing.T) {
	own, theirs, err := linux.PacketPair("inside")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := linux.PacketConn(theirs)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- ServeInside(conn) }()
	i := &inside{conn: own}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	number := int(file.Fd())
	process, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(process)

	target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", number))
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := i.socketNames(process)
	if err != nil || !strings.Contains(string(sockets), fmt.Sprintf("%d %s\n", number, target)) {
		t.Errorf("sockets %q, %v, want %d %s among them", sockets, err, number, target)
	}
	own.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
	conn.Close()
}
