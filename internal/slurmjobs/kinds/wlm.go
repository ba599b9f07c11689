package kinds

import (
	"maps"
	"slices"
	"strings"
)

// slurmJobSpec is the spec of a SlurmJob.
type slurmJobSpec struct {
	Batch        string         `json:"batch"`
	NodeSelector map[string]any `json:"nodeSelector"`
	Results      map[string]any `json:"results"`
	Prepare      map[string]any `json:"prepare"`
}

// Labels of the nodes that WLM-Operator registers, one for each partition.
const (
	labelPrefix    = "wlm.sylabs.io/"
	labelPartition = labelPrefix + "partition"
	labelType      = "type"
)

// readSlurmJob decodes the spec of a SlurmJob, and adds what is wrong with it to p.
func readSlurmJob(text []byte, p *problems) Request {
	var spec slurmJobSpec
	p.decode(text, &spec)
	var request Request
	request.Script = p.script("spec.batch", spec.Batch)
	request.selectNodes(spec.NodeSelector, "#SBATCH lines in spec.batch", p)
	request.readResults(spec.Results, p)
	if spec.Prepare != nil {
		to, volume := p.transfer("spec.prepare", "to", spec.Prepare)
		request.Inputs = &Inputs{To: to, Volume: volume}
	}
	return request
}

// readResults decodes spec.results, and adds what is wrong with it to p.
func (r *Request) readResults(results map[string]any, p *problems) {
	if results != nil {
		from, volume := p.transfer("spec.results", "from", results)
		r.Results = &Results{From: from, Volume: volume}
	}
}

// transfer decodes a field with a path of the job and a volume.
func (p *problems) transfer(field, path string, values map[string]any) (string, map[string]any) {
	file, _ := values[path].(string)
	volume, _ := values["mount"].(map[string]any)
	name, _ := volume["name"].(string)
	switch {
	case strings.TrimSpace(file) == "":
		p.add("%s.%s is empty: give a path", field, path)
	case name == "" || len(volume) != 2:
		p.add("%s.mount: give a name and one volume, as in a pod, such as persistentVolumeClaim: {claimName: data}", field)
	}
	return p.file(field+"."+path, file), volume
}

// selectNodes maps a nodeSelector to a partition and to features of nodes. A label
// wlm.sylabs.io/NAME: VALUE requires the feature NAME-VALUE. sizes names the fields for the size
// of the job.
func (r *Request) selectNodes(selector map[string]any, sizes string, p *problems) {
	for _, label := range slices.Sorted(maps.Keys(selector)) {
		field := "spec.nodeSelector: " + label
		value, ok := scalar(selector[label])
		if !ok {
			p.add("%s: give a string or a number", field)
			continue
		}
		name, isWLM := strings.CutPrefix(label, labelPrefix)
		switch {
		case label == labelPartition:
			r.Partition = p.word(field, value)
		case label == labelType && value == "virtual-kubelet":
			// WLM-Operator gives this label to the node of every partition.
		case isWLM && slices.Contains([]string{"nodes", "cpu-per-node", "mem-per-node", "wall-time"}, name):
			p.add("%s: give the job's size with %s", field, sizes)
		case isWLM:
			r.Features = append(r.Features, p.feature(field, name+"-"+value))
		default:
			p.add("%s: no label of a partition: use %s, or %sNAME: VALUE for the feature NAME-VALUE of nodes", field, labelPartition, labelPrefix)
		}
	}
}

// feature checks that a feature is a single name: sbatch --constraint takes an expression.
func (p *problems) feature(field, name string) string {
	if strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
	}) {
		p.add("%s: feature %q: use letters, digits, dots, - and _", field, name)
	}
	return name
}
