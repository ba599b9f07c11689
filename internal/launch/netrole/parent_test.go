package netrole

import (
	"os"
	"testing"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/linux"
)

// The child takes what the parent passes: all that belongs to a Switch, and
// nothing else.
func TestSwitchTakesHeldDescriptors(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	held, err := Hold(cluster.Plan{Members: []cluster.Member{{Name: "n1"}}}, nil, []*os.File{null, null}, null)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	var fds linux.FDTable
	held.addTo(&fds)
	numbers := fds.Numbers(0)
	for name, want := range map[string]int{fdListener: 2, fdContainers: 1, fdInside: 1, fdState: 1, fdLifeline: 1, fdServices: 1} {
		if got := len(numbers[name]); got != want {
			t.Errorf("%s is passed %d times, want %d", name, got, want)
		}
		delete(numbers, name)
	}
	if len(numbers) > 0 {
		t.Errorf("the child does not know %v", numbers)
	}
	var none *Held
	if passed := none.ForNodeRole(); passed != nil {
		t.Errorf("without a Switch, the node role inherits %v", passed)
	}
	none.Close()
}
