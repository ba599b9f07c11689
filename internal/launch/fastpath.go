package launch

import (
	"os"

	"berth.dev/berth/internal/launch/hostnet"
)

// hasSwitch reports whether this host has a Switch. On a single node, the Switch
// serves connections to the outside.
func (r *run) hasSwitch() bool {
	if r.members.Several() {
		return r.members.HasSwitch()
	}
	fast, err := hostnet.WantsFastPath(r.Spec.Network.FastPath)
	if fast {
		// Where there is no such device, there is no net role either.
		var tun *os.File
		if tun, err = os.OpenFile("/dev/net/tun", os.O_RDWR, 0); err == nil {
			tun.Close()
		}
	}
	if err != nil {
		r.Log.Debug("connections of pods are not made by the host: " + err.Error())
	}
	return fast && err == nil
}
