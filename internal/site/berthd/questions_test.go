package berthd

import (
	"testing"
	"time"

	"berth.dev/berth/internal/site/siteconf"
)

// Only the first step on a node waits for a berthd that restarts elsewhere.
func TestLimitOfQuestion(t *testing.T) {
	for _, test := range []struct {
		fields map[string]string
		want   time.Duration
	}{
		{map[string]string{}, attachTimeout},
		{map[string]string{"limit": "20"}, 20 * time.Second},
		{map[string]string{"limit": "48"}, maxLimit},
		{map[string]string{"limit": "48", "waited": "yes"}, attachTimeout},
	} {
		if got := limitOf(siteconf.Message{Fields: test.fields}); got != test.want {
			t.Errorf("%v: %s, want %s", test.fields, got, test.want)
		}
	}
}
