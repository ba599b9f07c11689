package vxlan

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil"
)

// A program has ended, and its last packet is lost. Its namespace is left only when the
// packet has arrived.
func TestClosedConnectionsAreAwaited(t *testing.T) {
	testutil.Require(t, testutil.Root)
	path := filepath.Join(t.TempDir(), "pod")
	if err := NewNamespace(path, false); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := RemoveNamespace(path); err != nil {
			t.Error(err)
		}
	}()
	inside := func(do func() error) {
		t.Helper()
		if err := linux.InNetworkNamespace(path, do); err != nil {
			t.Fatal(err)
		}
	}
	setLoopback := func(set func(netlink.Link) error) {
		t.Helper()
		inside(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return set(lo)
		})
	}
	var here, there net.Conn
	inside(func() error {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer listener.Close()
		if here, err = net.Dial("tcp4", listener.Addr().String()); err != nil {
			return err
		}
		there, err = listener.Accept()
		return err
	})
	defer there.Close()

	setLoopback(netlink.LinkSetDown)
	here.Close()
	over := errors.New("over")
	ended, end := context.WithCancelCause(t.Context())
	end(over)
	if err := AwaitSent(ended, path); !errors.Is(err, over) {
		t.Errorf("before the packet has arrived: %v", err)
	}
	setLoopback(netlink.LinkSetUp)
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := AwaitSent(soon, path); err != nil {
		t.Errorf("the packet is repeated: %v", err)
	}
}
