package sited

import (
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil"
)

func TestMetricsAreAsWritten(t *testing.T) {
	m := &metrics{}
	for _, took := range []time.Duration{5 * time.Millisecond, 25 * time.Millisecond, 30 * time.Millisecond, time.Minute} {
		m.attached(took)
	}
	m.refuse()
	m.fail()
	m.fail()
	var text strings.Builder
	if err := m.write(&text, 3, 1, true); err != nil {
		t.Fatal(err)
	}
	testutil.Golden(t, "metrics.txt", text.String())
}
