package launch

import (
	"testing"

	"berth.dev/berth/internal/base/probe"
)

func TestPodIDs(t *testing.T) {
	full := []probe.IDRange{{Inside: 0, Outside: 1000, Count: 1}, {Inside: 1, Outside: 100000, Count: 65536}}
	for want, ids := range map[string]probe.IDMap{
		"0 to 65536": {UIDs: full, GIDs: full},
		"0":          {UIDs: full, GIDs: full, OneUID: true},
	} {
		if got := (host{ids: ids}).podIDs(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
