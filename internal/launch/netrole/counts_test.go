package netrole

import (
	"testing"

	"berth.dev/berth/internal/base/metrics"
	"berth.dev/berth/internal/network/egress"
)

// TestKnownCounts checks that each counter has a description. Others would not
// be shown.
func TestKnownCounts(t *testing.T) {
	known := map[string]bool{}
	for _, family := range metrics.Families() {
		known[family.Name] = true
	}
	for name := range counters(&egress.Counters{}, nil, nil) {
		if family := metrics.FamilyOf(name); !known[family] {
			t.Errorf("%s is described nowhere", family)
		}
	}
}
