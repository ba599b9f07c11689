package wishes

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	helpers "k8s.io/component-helpers/resource"

	"berth.dev/berth/internal/job/batch"
	"berth.dev/berth/internal/job/permit"
)

// amount holds what options of sbatch ask for. Zero values ask for nothing.
type amount struct {
	tasks, perTask, perNode, minimum int64 // CPUs
	memory, perCPU, perGPU           int64 // bytes
	cpusPerGPU                       int64
	gpus                             int64
	gpuType                          string
	gpusBy, gpusFrom                 string // the option, and the annotation for messages
	gres                             []string
	nodes                            int64
	nodesFrom                        string
}

// greatest bounds each number, so that products fit an int64.
const greatest = 1 << 20

// add reads an option about resources. It returns false if the option has no effect.
func (a *amount) add(r *reader, w wish) bool {
	value := w.option.Value
	number := func(to *int64) bool {
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		if err != nil || n < 1 || n > greatest {
			r.problem(w.from, true, "--%s=%s: give a number from 1 to %d", w.option.Name, value, greatest)
			return false
		}
		*to = n
		return true
	}
	size := func(to *int64) bool {
		n, ok := bytes(value)
		if !ok {
			r.problem(w.from, true, "--%s=%s: give an amount of memory, such as 4G", w.option.Name, value)
			return false
		}
		*to = n
		return true
	}
	switch w.option.Name {
	case "ntasks":
		return number(&a.tasks)
	case "ntasks-per-node", "tasks-per-node":
		return number(&a.perNode)
	case "cpus-per-task":
		return number(&a.perTask)
	case "mincpus":
		return number(&a.minimum)
	case "cpus-per-gpu":
		return number(&a.cpusPerGPU)
	case "mem":
		if value == "0" {
			r.problem(w.from, false, "--mem=0: request the memory that the pod needs, or use exclusive")
			return false
		}
		return size(&a.memory)
	case "mem-per-cpu":
		return size(&a.perCPU)
	case "mem-per-gpu":
		return size(&a.perGPU)
	case "nodes":
		least, _, _ := strings.Cut(value, "-")
		value = least
		a.nodesFrom = w.from
		return number(&a.nodes)
	}
	return a.devices(r, w)
}

var memory = regexp.MustCompile(`^([0-9]{1,12})([KMGT]?)B?$`)

// bytes reads an amount of memory as sbatch does: in MiB, or with a suffix.
func bytes(value string) (int64, bool) {
	m := memory.FindStringSubmatch(strings.ToUpper(strings.TrimSpace(value)))
	if m == nil {
		return 0, false
	}
	n, _ := strconv.ParseInt(m[1], 10, 64) // has at most 12 digits
	for range strings.Index("KMGT", cmp.Or(m[2], "M")) + 1 {
		n = limited(n, 1<<10)
	}
	return n, n > 0 && n <= 1<<50
}

var (
	name   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)
	number = regexp.MustCompile(`^[0-9]{1,6}$`)
	gres   = regexp.MustCompile(`^(?i:gres)[/:]`)
)

// devices reads --gres and the options for GPUs: a list of [gpu:][TYPE:][NUMBER]. Other devices
// of --gres stay an option.
func (a *amount) devices(r *reader, w wish) bool {
	refuse := func(why string) bool {
		r.problem(w.from, true, "--%s=%s: %s", w.option.Name, w.option.Value, why)
		return false
	}
	gpus, kind := int64(0), ""
	var others []string
	for part := range strings.SplitSeq(w.option.Value, ",") {
		part = gres.ReplaceAllString(part, "")
		fields := strings.FieldsFunc(part, func(c rune) bool { return c == ':' || c == '=' })
		if w.option.Name == "gres" {
			if len(fields) == 0 {
				return refuse("it has no device")
			}
			if err := permit.Check(batch.Option{Name: "gres", Value: part}); err != nil {
				return refuse(err.Error())
			}
			if !strings.EqualFold(fields[0], "gpu") {
				others = append(others, part)
				continue
			}
			fields = fields[1:]
		}
		count := int64(1)
		if last := len(fields) - 1; last >= 0 && number.MatchString(fields[last]) {
			count, _ = strconv.ParseInt(fields[last], 10, 64) // has at most 6 digits
			fields = fields[:last]
		} else if w.option.Name != "gres" {
			return refuse("give a number of GPUs, such as 2 or a100:2")
		}
		switch {
		case len(fields) > 1, len(fields) == 1 && !name.MatchString(fields[0]):
			return refuse("give a number of GPUs, such as gpu:2 or gpu:a100:2")
		case len(fields) == 1 && kind != "" && fields[0] != kind:
			return refuse("a pod has GPUs of one type")
		case len(fields) == 1:
			kind = fields[0]
		}
		gpus += count
	}
	if w.option.Name == "gres" {
		slices.Sort(others)
		a.gres = others
	}
	if gpus > 0 || w.option.Name == a.gpusBy {
		a.gpus, a.gpuType, a.gpusBy, a.gpusFrom = gpus, kind, w.option.Name, w.from
	}
	return true
}

// amounts sets the CPUs, memory and GPUs that a pod needs: its requests as the scheduler counts them,
// or the amounts in its wishes, if these are greater.
func (r *reader) amounts(pod *v1.Pod, to *Request) {
	requests := helpers.PodRequests(pod, helpers.PodResourcesOptions{})
	const most = 1 << 60
	to.MilliCPU, to.Memory = min(requests.Cpu().MilliValue(), most), min(requests.Memory().Value(), most)
	count := int64(0)
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		quantity := requests[name]
		switch {
		case quantity.IsZero(), name == v1.ResourceCPU, name == v1.ResourceMemory, name == v1.ResourceEphemeralStorage:
		case name == "nvidia.com/gpu", name == "amd.com/gpu":
			if to.GPUs == nil {
				to.GPUs = map[v1.ResourceName]int64{}
			}
			to.GPUs[name] = min(quantity.Value(), most)
			count += to.GPUs[name]
		default:
			to.Others = append(to.Others, name)
		}
	}
	a, pods := r.amount, int64(max(to.GangSize, 1))
	tasks := (a.tasks + pods - 1) / pods // ntasks and gpus are for the whole job
	if a.gpusBy == "gpus" {
		a.gpus = (a.gpus + pods - 1) / pods
	}
	if a.gpus > count {
		r.problem(a.gpusFrom, false, "it asks for %d GPUs, and the pod for %d: request nvidia.com/gpu or amd.com/gpu in the pod's resources, which decide what a container sees", a.gpus, count)
	}
	if count > 0 {
		to.GPUType = a.gpuType
	}
	cpus := max(max(tasks, a.perNode, 1)*max(a.perTask, 1), a.minimum, limited(a.cpusPerGPU, count))
	if a.tasks+a.perNode+a.perTask+a.minimum+a.cpusPerGPU > 0 {
		to.MilliCPU = max(to.MilliCPU, limited(cpus, 1000))
	}
	to.Memory = max(to.Memory, a.memory, limited(a.perCPU, max(cpus, (to.MilliCPU+999)/1000)), limited(a.perGPU, count))
}

// limited returns a product of at most 1<<60.
func limited(bytes, count int64) int64 {
	if bytes > 0 && count > 1<<60/bytes {
		return 1 << 60
	}
	return bytes * count
}
