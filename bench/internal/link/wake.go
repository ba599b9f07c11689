package link

import (
	"encoding/binary"
	"fmt"
	"os"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/profiles"
)

// wakeFile limits the time that a processor of this machine may take to wake up. A
// process writes the limit in µs as a 32-bit integer, which applies until it closes the
// file (Linux, pm_qos_interface.rst).
const wakeFile = "/dev/cpu_dma_latency"

// holdAwake sets the wake-up limit of the link's profile. It applies until the caller closes
// the returned file. The file is nil if the profile has no limit. holdAwake returns an error
// if the profile cannot be read or the file at path cannot be written.
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
		return nil, fmt.Errorf("limit the wake-up time to %d µs: %w", *profile.Wake, err)
	}
	return held, nil
}
