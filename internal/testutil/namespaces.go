package testutil

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// MainInNamespaces implements TestMain for a package whose tests run as root of a
// new user and network namespace, prepared by setUp. If the machine does not allow
// namespaces, tests that need them are skipped, or fail.
func MainInNamespaces(m *testing.M, setUp func() error) {
	const inside = "BERTH_TEST_IN_NAMESPACES"
	// A fuzzer talks with its workers through descriptors, and needs no
	// namespaces.
	if slices.ContainsFunc(os.Args, func(arg string) bool {
		return strings.HasPrefix(arg, "-test.fuzz=") || strings.HasPrefix(arg, "-test.fuzzworker")
	}) {
		os.Exit(m.Run())
	}
	if os.Getenv(inside) == "" {
		command := exec.Command("/proc/self/exe", os.Args[1:]...)
		command.Env = append(os.Environ(), inside+"=1")
		command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
		command.SysProcAttr = NewNamespaces()
		err := command.Run()
		if exit := new(exec.ExitError); err == nil || errors.As(err, &exit) {
			os.Exit(command.ProcessState.ExitCode())
		}
		fmt.Fprintln(os.Stderr, "no namespaces:", err)
		os.Exit(m.Run())
	}
	if err := setUp(); err != nil {
		fmt.Fprintln(os.Stderr, "set up namespaces for tests:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// SetUpLink gives an interface addresses and takes it up.
func SetUpLink(name string, addresses ...netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, address := range addresses {
		ipNet := &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen())}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add %s to %s: %w", address, name, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// Eventually polls until the condition holds, and fails the test, with the
// stacks of all goroutines, where it does not within 20 seconds.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !condition(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s\n%s", what, Stacks())
		}
	}
}

// Await polls until check returns nil, and fails the test with its error where it
// does not within limit.
func Await(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); ; <-tick.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// Stacks returns the stacks of all goroutines.
func Stacks() []byte {
	stacks := make([]byte, 1<<20)
	return stacks[:runtime.Stack(stacks, true)]
}

// Serve gives each connection to serve, and closes it then. The listener is
// closed when the test ends.
func Serve(t testing.TB, listener net.Listener, serve func(net.Conn)) {
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
}
