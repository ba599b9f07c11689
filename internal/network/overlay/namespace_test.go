package overlay

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

// namespace is a network namespace that lives on one locked thread.
type namespace struct {
	work chan func()
	file *os.File
}

func newNamespace(t testing.TB) *namespace {
	t.Helper()
	return enterNamespace(t, func() error { return unix.Unshare(unix.CLONE_NEWNET) })
}

// enterNamespace starts the thread and calls enter on it, which must enter the
// namespace.
func enterNamespace(t testing.TB, enter func() error) *namespace {
	t.Helper()
	n := &namespace{work: make(chan func())}
	ready := make(chan error)
	testutil.OnNewThread(func() {
		err := enter()
		if err == nil {
			n.file, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		}
		ready <- err
		for f := range n.work {
			f()
		}
	})
	if err := <-ready; err != nil {
		t.Fatalf("make a namespace: %v", err)
	}
	t.Cleanup(func() {
		n.file.Close()
		close(n.work)
	})
	return n
}

func (n *namespace) do(f func()) {
	finished := make(chan struct{})
	n.work <- func() { defer close(finished); f() }
	<-finished
}

// try calls f in the namespace, and fails the test on an error.
func (n *namespace) try(t testing.TB, f func() error) {
	t.Helper()
	var err error
	n.do(func() { err = f() })
	if err != nil {
		t.Fatal(err)
	}
}

func addLink(name string, mtu int, offloads bool, addresses ...netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(link, mtu); err != nil {
		return err
	}
	if !offloads {
		for _, what := range []uint32{unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO, unix.ETHTOOL_SGRO, unix.ETHTOOL_STXCSUM} {
			if err := setEthtool(name, what, 0); err != nil {
				return err
			}
		}
	}
	return testutil.SetUpLink(name, addresses...)
}

// setEthtool switches an offload of an interface.
func setEthtool(name string, what, value uint32) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	argument := [2]uint32{what, value}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&argument)}
	copy(request.name[:], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("set offload %#x of %s: %w", what, name, errno)
	}
	return nil
}

// limitRate limits an interface to a rate, in bytes per second.
func limitRate(name string, rate uint64) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	const burst = 256 << 10 // some super-packets
	return netlink.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate, Limit: 4 << 20, Buffer: uint32(netlink.Xmittime(rate, burst)),
	})
}
