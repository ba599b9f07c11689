package launch

import (
	"path/filepath"
	"testing"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/members"
)

// A cluster that cannot prove itself to nodes of other jobs ends before it plans anything.
func TestElasticClusterNeedsProofFirst(t *testing.T) {
	r := new(run)
	r.members = new(members.Members)
	r.Spec.Seats = 1
	r.Spec.Network.Folder = filepath.Join(t.TempDir(), "none")
	for _, step := range r.leadSteps(nil) {
		switch step.name {
		case "plan":
			t.Fatal("the plan is made without a proof")
		case "proof for seats":
			if err := step.do(t.Context()); exitcode.Of(err) != exitcode.Unavailable {
				t.Errorf("the proof ends with %v", err)
			}
			step.stop()
			return
		}
	}
}

func TestOtherClustersNeedNoProofForSeats(t *testing.T) {
	r := new(run)
	if err := r.proveSeats(t.Context()); err != nil {
		t.Error(err)
	}
	r.closeSeats()
}
