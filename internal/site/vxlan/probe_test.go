package vxlan

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil"
)

func TestOtherNetworksInRangeOfPodsAreReported(t *testing.T) {
	testutil.Require(t, testutil.Root)
	pods := netip.MustParsePrefix("10.128.0.0/12")
	for _, c := range []struct {
		setup, says string
		routed      bool
	}{
		{setup: "address add 10.130.0.1/24 dev eth2", says: "pods 10.128.0.0/12 overlap network 10.130.0.0/24, which this host reaches by eth2"},
		{setup: "address add 10.0.0.1/8 dev eth2", says: "overlap network 10.0.0.0/8"},
		{setup: "address add fd00::1/64 dev eth2", says: "pods fd00::/96 overlap network fd00::/64"},
		{setup: "route add 10.131.0.0/16 via 192.168.0.1", says: "overlap network 10.131.0.0/16"},
		{setup: "route add 10.131.0.0/16 via 192.168.0.1", routed: true},
		{setup: "route add 10.0.0.0/8 via 192.168.0.1"},
		{setup: "route add default via 192.168.0.1"},
		{setup: "route add 10.128.0.2/32 via 192.168.0.1 proto 98"},
		{setup: "route add 10.128.0.3/32 dev berthb000001"},
	} {
		linux.OnNewThread(func() {
			err := unix.Unshare(unix.CLONE_NEWNET)
			for _, command := range []string{
				"link add eth2 type bridge", "link set eth2 up", "link add berthb000001 type bridge", "link set berthb000001 up", "address add 192.168.0.2/24 dev eth2", c.setup,
			} {
				if out, failed := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); failed != nil {
					err = errors.Join(err, fmt.Errorf("ip %s: %w: %s", command, failed, out))
				}
			}
			if err != nil {
				t.Error(err)
				return
			}
			err = CheckRanges(c.routed, pods, netip.MustParsePrefix("fd00::/96"))
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%s: %v, want %q", c.setup, err, c.says)
			}
		})
	}
}
