package podlink

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const inNamespaces = "BERTH_PODLINK_TEST"

// TestSuperPacketsAreLimited does so in another network namespace, and finds
// its own as it was. So are redirects ignored.
func TestSuperPacketsAreLimited(t *testing.T) {
	if os.Getenv(inNamespaces) == "" {
		command := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		command.Env = append(os.Environ(), inNamespaces+"=1")
		command.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		}
		out, err := command.CombinedOutput()
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			t.Fatalf("%s", out)
		} else if err != nil {
			t.Skipf("needs user namespaces: %v", err)
		}
		return
	}
	pod := make(chan string)
	done := make(chan struct{})
	defer close(done)
	go func() {
		runtime.LockOSThread() // and the namespace ends with the thread
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			pod <- ""
			return
		}
		pod <- fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		<-done
	}()
	path := <-pod
	namespace, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	const size = 61476
	if err := LimitSuperPackets(path, size); !errors.Is(err, unix.ENODEV) {
		t.Errorf("without an interface: %v, want %v", err, unix.ENODEV)
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "there"}, PeerName: name, PeerNamespace: netlink.NsFd(namespace.Fd())}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	if err := LimitSuperPackets(path, size); err != nil {
		t.Fatal(err)
	}
	if err := IgnoreRedirects(path); err != nil {
		t.Fatal(err)
	}
	if err := inside(path, func() error {
		if text, err := os.ReadFile("/proc/sys/net/ipv6/conf/eth0/accept_redirects"); err == nil && string(text) != "0\n" {
			return fmt.Errorf("accept_redirects is %q", text)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	checkIdentity(t, path)
	peer, err := netlink.VethPeerIndex(pair)
	if err != nil {
		t.Fatal(err)
	}
	limits := make(chan uint32)
	go func() {
		runtime.LockOSThread()
		var limit uint32
		if unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET) == nil {
			if link, err := netlink.LinkByIndex(peer); err == nil {
				limit = link.Attrs().GSOMaxSize
			}
		}
		limits <- limit
	}()
	if limit := <-limits; limit != size {
		t.Errorf("the limit of the pod's end is %d, want %d", limit, size)
	}
	own, err := netlink.LinkByName("there")
	if err != nil {
		t.Fatal(err)
	}
	if limit := own.Attrs().GSOMaxSize; limit == size {
		t.Error("the node's end is limited, too")
	}
}

// checkIdentity gives a pod an address of each family, and expects what it has
// and the namespace's cookie to be its identity.
func checkIdentity(t *testing.T, path string) {
	t.Helper()
	if identity, err := Identity(path); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("without an address: %q, %v, want %v", identity, err, unix.EADDRNOTAVAIL)
	}
	var cookie uint64
	add := func(text string) {
		t.Helper()
		if err := inside(path, func() error {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			address, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(socket)
			cookie, err = unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
			return errors.Join(err, netlink.AddrAdd(link, address))
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ address, want string }{
		{"100.64.0.7/23", "100.64.0.7 %d"},
		{"fe80::7/64", "100.64.0.7 %d"},
		{"fd64::7/64", "100.64.0.7,fd64::7 %d"},
	} {
		add(c.address)
		if got, err := Identity(path); err != nil || got != fmt.Sprintf(c.want, cookie) {
			t.Errorf("with %s: identity %q, %v, want %q", c.address, got, err, fmt.Sprintf(c.want, cookie))
		}
	}
}
