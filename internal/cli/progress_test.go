package cli

import (
	"strings"
	"testing"

	"berth.dev/berth/internal/launch/crash"
)

// Nothing comes with this test program, so no process can report its crash.
func TestMissingReporterOfCrashesIsSaid(t *testing.T) {
	var out strings.Builder
	err := withProgress(&out, verbosity{}, func(*progress, *crash.Reporter) (int, error) { return 0, nil })
	if err != nil || !strings.Contains(out.String(), "warn: start the process that reports crashes: ") {
		t.Errorf("said %q, %v", &out, err)
	}
}

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
