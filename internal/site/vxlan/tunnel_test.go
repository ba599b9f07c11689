package vxlan

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil"
)

// A tunnel with another port is replaced, because rules guard only the configured
// port. If the port is in use, the error names the port.
func TestTunnelsUseConfiguredPort(t *testing.T) {
	testutil.Require(t, testutil.Root)
	linux.OnNewThread(func() {
		if err := tunnelMoves(); err != nil {
			t.Error(err)
		}
	})
}

func tunnelMoves() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := testutil.SetUpLink("lo"); err != nil {
		return err
	}
	last := 0
	for _, port := range []uint16{4789, 289, 289} {
		s := State{Host: netip.MustParseAddr("127.0.0.1"), Port: port}
		// A daemon restarts with another configuration.
		k := Kernel{NFT: "nft", Log: slog.New(slog.DiscardHandler)}
		if err := k.moveTunnels(port); err != nil {
			return err
		}
		link, err := ensure(s.vxlan(4096, 1450))
		if err != nil {
			return err
		}
		if err := s.startTunnel(link); err != nil {
			return err
		}
		if is := link.(*netlink.Vxlan).Port; is != int(port) {
			return fmt.Errorf("the tunnel is at port %d, want %d", is, port)
		}
		if port == 289 && last != 0 && link.Attrs().Index != last {
			return errors.New("a tunnel at the right port was made again")
		}
		if port == 289 {
			last = link.Attrs().Index
		}
	}
	taken, err := net.ListenPacket("udp4", "127.0.0.1:4790")
	if err != nil {
		return err
	}
	defer taken.Close()
	s := State{Host: netip.MustParseAddr("127.0.0.1"), Port: 4790}
	link, err := ensure(s.vxlan(4097, 1450))
	if err != nil {
		return err
	}
	if err := s.startTunnel(link); err == nil || !strings.Contains(err.Error(), "ss -lunp sport = :4790") {
		return fmt.Errorf("somebody has the port: %w", err)
	}
	return nil
}
