package cases

import "testing"

// TestBytes: sizes as fio accepts them.
func TestBytes(t *testing.T) {
	for size, want := range map[string]float64{"1k": 1024, "128m": 128 << 20, "8G": 8 << 30} {
		if got := bytes(size); got != want {
			t.Errorf("%s: %g", size, got)
		}
	}
}
