package wishes

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth.dev/berth/internal/job/batch"
	"berth.dev/berth/internal/job/permit"
)

// Request describes the node that a pod needs.
type Request struct {
	// Options holds words for the command line of sbatch, sorted, each with the long name and the
	// value of one option. It has no options for the number of nodes, CPUs, memory and GPUs.
	Options []string
	// MilliCPU and Memory, in bytes, hold the amounts that the scheduler counts for the pod, or that
	// its wishes ask for, if these are greater.
	MilliCPU, Memory int64
	// GPUs holds the number of GPUs by the name of the resource, such as nvidia.com/gpu. GPUType is
	// Slurm's name of their type, or empty. Options may have --gres, so request GPUs with
	// --gpus-per-node.
	GPUs    map[v1.ResourceName]int64
	GPUType string
	// Others lists the pod's other resources, which no option of sbatch requests.
	Others []v1.ResourceName
	// Alone reports whether an annotation asks for something, even for something that no job can
	// give. No other pod uses the job of such a pod, so the job's accounting describes only this pod.
	Alone bool
	// Gang identifies the pods that need their nodes together, and GangSize is their number. One
	// job brings a node for each of them, or none. Gang is empty if the pod is in no gang.
	Gang     string
	GangSize int
}

// Problem describes a wish that is not fulfilled.
type Problem struct {
	// Wish is the annotation or the field of the pod. Why is the reason and the remedy.
	Wish, Why string
	// Blocks is true if a job without the wish would not be what the pod asks for, so none may be
	// submitted. Otherwise the wish is ignored.
	Blocks bool
}

func (p Problem) String() string { return p.Wish + ": " + p.Why }

// Owner holds what an object above a pod adds to the wishes of the pod.
type Owner struct {
	// Kind and Name are for messages.
	Kind, Name  string
	Annotations map[string]string
	// Gang is the number of pods, this one included, that the object needs together, or 0. Part
	// names these pods if the object has others, too.
	Gang int
	Part string
}

// Of returns the request of a pod. Owners lists the objects above the pod, the nearest one first.
func Of(pod *v1.Pod, owners ...Owner) (Request, []Problem) {
	r := reader{values: map[string]string{}}
	for _, wish := range r.wishes(pod, owners) {
		r.take(wish)
	}
	request := Request{Alone: r.alone || len(r.values) > 0}
	r.gang(pod, owners, &request)
	r.hosts(request.GangSize)
	r.amounts(pod, &request)
	r.selected(pod)
	request.Options = r.options()
	request.Alone = request.Alone || slices.ContainsFunc(r.problems, func(p Problem) bool { return p.Blocks })
	return request, r.problems
}

// A wish is an option of sbatch, and the annotation or field that asks for it. If without is true,
// it asks for a job without the option.
type wish struct {
	from    string
	option  batch.Option
	without bool
}

// reader collects the wishes of a pod.
type reader struct {
	// values holds the value of each option, "" for an option without a value. A later wish
	// replaces an earlier one.
	values map[string]string
	amount amount
	// alone reports whether the pod has a wish for an amount.
	alone bool
	// nodelistFrom is the annotation with the list of hosts, for messages.
	nodelistFrom string
	problems     []Problem
}

func (r *reader) problem(from string, blocks bool, format string, values ...any) {
	p := Problem{Wish: from, Why: fmt.Sprintf(format, values...), Blocks: blocks}
	if !slices.Contains(r.problems, p) {
		r.problems = append(r.problems, p)
	}
}

// PilotName is the start of the names of jobs that bring nodes to a cluster. Pods may not use it.
const PilotName = "berth-join-"

// noValue lists the permitted options that take no value. For options in mayHaveValue, the value is
// optional.
const (
	noValue      = " contiguous oversubscribe spread-job use-min-nodes "
	mayHaveValue = " exclusive nice "
	// longest is the greatest length of a value, in bytes.
	longest = 4096
)

// take adds one wish.
func (r *reader) take(w wish) {
	name, value := w.option.Name, w.option.Value
	if permit.In(permit.Ignored, name) {
		return
	}
	if why := meaningless[name]; why != "" {
		r.problem(w.from, permit.In(stops, name), "--%s: %s", name, why)
		return
	}
	if err := permit.Check(w.option); err != nil {
		r.problem(w.from, true, "%v", err)
		return
	}
	switch {
	case name == "job-name" && strings.HasPrefix(value, PilotName):
		r.problem(w.from, true, "--%s: names that begin with %s are for nodes of clusters: choose another name", name, PilotName)
		return
	case len(value) > longest:
		r.problem(w.from, true, "--%s: its value has more than %d bytes", name, longest)
		return
	case permit.In(permit.Resources, name):
		r.alone = r.amount.add(r, w) || r.alone
	case !permit.In(permit.Placement, name):
		// sbatch refuses unknown options, and slurm-bridge ignores unknown annotations.
		r.problem(w.from, !strings.Contains(w.from, slinky), "--%s: a pod may not use it: delete it", name)
	case w.without:
		delete(r.values, name)
	case permit.In(noValue, name):
		if value != "" {
			r.problem(w.from, true, "--%s: it takes no value: delete %q", name, value)
			return
		}
		r.values[name] = ""
	case value == "" && !permit.In(mayHaveValue, name):
		r.problem(w.from, true, "--%s: it needs a value", name)
	default:
		r.values[name] = value
		if name == "nodelist" {
			r.nodelistFrom = w.from
		}
	}
}

// hosts checks that --nodelist has no more hosts than the job has nodes. A range counts as two.
func (r *reader) hosts(gangSize int) {
	list := r.values["nodelist"]
	names := ranges.ReplaceAllString(list, ",")
	if strings.Count(names, ",") >= max(gangSize, 1) {
		r.problem(r.nodelistFrom, true, "--nodelist=%s: the job gets all of these hosts, and a pod has one: name one host for each pod, or use exclude or constraint", list)
	}
}

// ranges matches the parts of a list of hosts that stand for several, such as [1-3,7].
var ranges = regexp.MustCompile(`\[[^]]*[-,][^]]*\]`)

// options returns the words for sbatch.
func (r *reader) options() []string {
	values := maps.Clone(r.values)
	if len(r.amount.gres) > 0 {
		values["gres"] = strings.Join(r.amount.gres, ",")
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		word := "--" + name
		if value := values[name]; value != "" {
			word += "=" + value
		}
		words = append(words, word)
	}
	return words
}

// CheckOptions returns an error if Options of a Request cannot contain one of the words.
func CheckOptions(words []string) error {
	for _, word := range words {
		long, ok := strings.CutPrefix(word, "--")
		name, value, _ := strings.Cut(long, "=")
		if !ok || !permit.In(permit.Placement, name) && name != "gres" {
			return fmt.Errorf("no pod may use the option %q of sbatch", word)
		}
		if err := permit.Check(batch.Option{Name: name, Value: value}); err != nil {
			return err
		}
	}
	return nil
}
