package link

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"berth.dev/berth/bench/internal/plan"
)

// TestHoldAwake: a file that stays open gives the kernel the profile's latency
// in µs.
func TestHoldAwake(t *testing.T) {
	path := filepath.Join(t.TempDir(), "latency")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, without := range []string{"", "default"} {
		if held, err := holdAwake(plan.Link{Profile: without}, path); held != nil || err != nil {
			t.Errorf("%q: %v, %v", without, held, err)
		}
	}
	for profile, want := range map[string]uint32{"accelerator-performance": 99, "network-latency": 3} {
		held, err := holdAwake(plan.Link{Profile: profile}, path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil || binary.NativeEndian.Uint32(text) != want {
			t.Errorf("%s: told %v, %v, want %d", profile, text, err, want)
		}
		held.Close()
	}
	if _, err := holdAwake(plan.Link{Profile: "hpc-compute"}, path+"-none"); err == nil {
		t.Error("there is no such file, and no error")
	}
}
