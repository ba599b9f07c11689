package plans_test

import (
	"testing"

	"berth.dev/berth/bench/internal/campaign"
	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/plans"
)

// TestPlans: the included plans are valid.
func TestPlans(t *testing.T) {
	names := plans.Names()
	if len(names) == 0 {
		t.Error("there are none")
	}
	for _, name := range names {
		where, text, err := plans.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Parse(where, text, campaign.Known())
		if err != nil {
			t.Error(err)
			continue
		}
		if p.Name != name {
			t.Errorf("the plan %s calls itself %s", name, p.Name)
		}
		for _, c := range p.Cases {
			if c.Kind == "latency" && c.Parameters["protocol"] == "udp" && p.Links[c.Link].Loss != "" {
				t.Errorf("%s: %s waits for an answer that is lost", name, c.Name)
			}
		}
	}
	if _, _, err := plans.Read("./nothing.yaml"); err == nil {
		t.Error("a plan that is not there")
	}
}
