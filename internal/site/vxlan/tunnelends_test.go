package vxlan

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil"
)

// A host that has pods of one network does not send into another.
func TestTunnelsAcceptOnlyHostsOfTheirNetwork(t *testing.T) {
	testutil.Require(t, testutil.Root)
	linux.OnNewThread(func() {
		if err := tunnelsAccept(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func tunnelsAccept(ctx context.Context) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := testutil.SetUpLink("lo"); err != nil {
		return err
	}
	address := netip.MustParseAddr
	s := example()
	s.Host, s.Port = address("127.0.0.1"), 289
	s.Networks[0].Peers = []Peer{{Address: address("10.128.0.3"), Via: address("127.0.0.2")}}
	s.Networks[1].Peers = []Peer{{Address: address("10.128.0.4"), Via: address("127.0.0.3")}, {Address: address("10.128.0.5"), Via: address("127.0.0.4")}}
	s.distant = []netip.Addr{address("127.0.0.5")}
	k := &Kernel{NFT: "nft"}
	if err := k.load(ctx, s.rules(nil)); err != nil {
		return err
	}
	// The listener takes the place of the tunnels.
	here, err := net.ListenUDP("udp4", &net.UDPAddr{IP: s.Host.AsSlice(), Port: 289})
	if err != nil {
		return err
	}
	defer here.Close()
	if err := here.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	for _, sent := range []struct {
		from    string
		port    int
		vni     uint32
		arrives bool
	}{
		{"127.0.0.2", 600, 4097, false}, {"127.0.0.2", 600, 0, false}, {"127.0.0.2", 600, 4098, false},
		{"127.0.0.3", 600, 4096, false}, {"127.0.0.5", 600, 4096, false}, {"127.0.0.6", 600, 4096, false},
		{"127.0.0.2", 2000, 4096, false},
		{"127.0.0.2", 600, 4096, true}, {"127.0.0.3", 600, 4097, true}, {"127.0.0.4", 1023, 4097, true}, {"127.0.0.5", 512, 0, true},
	} {
		what := fmt.Sprintf("network %d from %s:%d", sent.vni, sent.from, sent.port)
		conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: address(sent.from).AsSlice(), Port: sent.port}, here.LocalAddr().(*net.UDPAddr))
		if err != nil {
			return err
		}
		// RFC 7348: flags, 24 reserved bits, the number, 8 reserved bits.
		packet := append([]byte{8, 0, 0, 0}, binary.BigEndian.AppendUint32(nil, sent.vni<<8)...)
		_, err = conn.Write(append(packet, what...))
		conn.Close()
		if err != nil {
			return err
		}
		if !sent.arrives {
			continue
		}
		// The loopback keeps the order, so a packet that should not arrive would come first.
		buffer := make([]byte, 200)
		n, _, err := here.ReadFromUDP(buffer)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if got := string(buffer[8:n]); got != what {
			return fmt.Errorf("arrived: %s, want %s", got, what)
		}
	}
	return nil
}
