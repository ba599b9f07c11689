package link

import (
	"encoding/binary"
	"fmt"
	"os"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/profiles"
)

// wakeFile sets the longest time in µs that a processor of this machine may take to wake
// up. The setting ends when the file is closed (Linux, pm_qos_interface.rst).
const wakeFile = "/dev/cpu_dma_latency"

// holdAwake sets the wake-up time of the link's profile until the file is closed. It
// returns nil if the profile sets none.
func holdAwake(l plan.Link, path string) (*os.File, error) {
	if l.Profile == "" {
		return nil, nil
	}
	profile, err := profiles.Read(l.Profile)
	if err != nil || profile.Wake == nil {
		return nil, err
	}
	held, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	var text [4]byte
	binary.NativeEndian.PutUint32(text[:], *profile.Wake)
	if _, err := held.Write(text[:]); err != nil {
		held.Close()
		return nil, fmt.Errorf("ask for %d µs: %w", *profile.Wake, err)
	}
	return held, nil
}
