package link

import (
	"encoding/binary"
	"fmt"
	"os"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/profiles"
)

// wakeFile takes the longest time in µs that a processor of this machine may take to wake
// up, for as long as who wrote it keeps it open (Linux, pm_qos_interface.rst).
const wakeFile = "/dev/cpu_dma_latency"

// holdAwake asks for what the link's profile says, until the file is closed; nil where it
// says nothing.
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
