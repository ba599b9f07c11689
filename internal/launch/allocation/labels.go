package allocation

import (
	"regexp"
	"strings"

	"berth.dev/berth/internal/job/slurm"
)

// Labels that describe a node's place in Slurm; see docs/nodes.md.
const (
	labelDomain = "slurm.berth.dev/"
	labelZone   = "topology.kubernetes.io/zone"
)

var invalidLabelValue = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// NodeLabels returns a node's labels from its job. The zone, over which upstream
// spreads pods, is the nearest block or else the nearest switch.
func NodeLabels(job slurm.Job) map[string]string {
	labels := map[string]string{}
	set := func(key, value string) {
		value = invalidLabelValue.ReplaceAllString(value, "-")
		if len(value) > 63 {
			value = value[:63]
		}
		if value = strings.Trim(value, "-_."); value != "" {
			labels[key] = value
		}
	}
	set(labelDomain+"job", job.ID)
	set(labelDomain+"node", job.NodeName)
	set(labelDomain+"partition", job.Partition)
	for _, kind := range []string{"switch", "block"} {
		set(labelDomain+kind, job.Topology[kind])
		set(labelZone, job.Topology[kind])
	}
	return labels
}
