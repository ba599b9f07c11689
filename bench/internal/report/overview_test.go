package report

import (
	"strings"
	"testing"

	"berth.dev/berth/bench/internal/record"
)

// TestOverview: the figures that a plan names come first, with the systems in its order. A
// ratio has its own interval, and no ratio to another one.
func TestOverview(t *testing.T) {
	const plan = "overview: [step, ratio]\nsystems: [{name: native}, {name: zero}, {name: ctr}, {name: never}]\n"
	lines := []record.Line{{Session: &record.Session{Name: "x", Title: "x", Plan: plan, Reference: "native"}}}
	for n := range 6 {
		for system, v := range map[string]float64{"native": 10, "zero": 20, "ctr": 10} {
			values := []record.Value{{Name: "step", Unit: "s", Better: "lower", Value: v + float64(n)/10}}
			if system != "native" {
				values = append(values, record.Value{Name: "ratio", Unit: "times", Better: "lower", Value: v/10 + float64(n)/100})
			}
			lines = append(lines, record.Line{Trial: &record.Trial{Case: "steps", Kind: "steps", System: system, Phase: record.Run, Number: n + 1, Values: values}})
		}
	}
	files, err := Make(lines)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		"| case | figure | native | zero | ctr |\n",
		"| steps | step, s | 10.25 (10.00 to 10.50) | 20.25 (× 1.976 (1.933 to 2.020)) | 10.25 (× 1.000 (0.971 to 1.029)) |\n",
		"| steps | ratio | – | 2.025 (2.000 to 2.050) | 1.025 (1.000 to 1.050) |\n",
	} {
		if !strings.Contains(string(files["report.md"]), row) {
			t.Errorf("no row %s", row)
		}
	}
	if t.Failed() {
		t.Logf("%.1500s", files["report.md"])
	}
	if !strings.Contains(string(files["report.html"]), `<br><span class="worse">× 1.9`) {
		t.Error("what is worse looks like the others")
	}
	// Without "overview" in the plan there is no such table.
	lines[0].Session.Plan = "systems: [{name: native}]\n"
	if files, err = Make(lines); err != nil || strings.Contains(string(files["report.md"]), "Side by side") {
		t.Errorf("it has one, %v", err)
	}
}
