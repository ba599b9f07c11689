package plans_test

import (
	"testing"

	"berth.dev/berth/bench/internal/campaign"
	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/plans"
)

// TestBaselines: each run measures how steady its machine was, except plans of a
// program with only one trial.
func TestBaselines(t *testing.T) {
	for _, name := range plans.Names() {
		where, text, err := plans.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Parse(where, text, campaign.Known())
		if err != nil {
			t.Fatal(err)
		}
		if (p.Baseline.Case == "") != (name == "site") {
			t.Errorf("%s: the baseline is %q", name, p.Baseline.Case)
		}
	}
}
