package allocation

import (
	"maps"
	"testing"

	"berth.dev/berth/internal/job/slurm"
)

func TestNodeLabels(t *testing.T) {
	for name, test := range map[string]struct {
		job  slurm.Job
		want map[string]string
	}{
		"outside of Slurm": {slurm.Job{}, map[string]string{}},
		"switch": {slurm.Job{ID: "7", NodeName: "CN_01", Partition: "long & wide", Topology: map[string]string{"switch": "leaf-7"}}, map[string]string{
			"slurm.berth.dev/job": "7", "slurm.berth.dev/node": "CN_01", "slurm.berth.dev/partition": "long-wide",
			"slurm.berth.dev/switch": "leaf-7", "topology.kubernetes.io/zone": "leaf-7",
		}},
		"block": {slurm.Job{Topology: map[string]string{"switch": "s1", "block": "b1"}}, map[string]string{
			"slurm.berth.dev/switch": "s1", "slurm.berth.dev/block": "b1", "topology.kubernetes.io/zone": "b1",
		}},
	} {
		if got := NodeLabels(test.job); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
