package launch

import (
	"log/slog"
	"os"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/members"
)

// hasSwitch reports whether this host has a Switch. On a single node, the Switch
// serves connections to the outside.
func hasSwitch(all *members.Members, spec cluster.Spec, log *slog.Logger) bool {
	if all.Several() {
		return all.HasSwitch()
	}
	fast, err := hostnet.WantsFastPath(spec.Network.FastPath)
	if fast {
		// Where there is no such device, there is no net role either.
		var tun *os.File
		if tun, err = os.OpenFile("/dev/net/tun", os.O_RDWR, 0); err == nil {
			tun.Close()
		}
	}
	if err != nil {
		log.Debug("connections of pods are not made by the host: " + err.Error())
	}
	return fast && err == nil
}
