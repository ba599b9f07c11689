package cli

import (
	"strings"
	"testing"
)

func TestAbsentStepIsNotShown(t *testing.T) {
	for _, verbose := range []bool{false, true} {
		var out strings.Builder
		p := newLines(&out, verbosity{verbose: verbose})
		p.step("node/ready")
		p.omit("workload")
		p.step("workload")
		if got := out.String(); !strings.Contains(got, "node ready") || strings.Contains(got, "workload") {
			t.Errorf("verbose %v: %q", verbose, got)
		}
	}
}
