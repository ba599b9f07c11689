package wishes

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth.dev/berth/internal/job/batch"
	"berth.dev/berth/internal/job/permit"
)

// flags lists the annotations that hold a command line of sbatch: of HPK, KNoC and interLink.
var flags = []string{"slurm.hpk.io/flags", "slurm-job.knoc.io/flags", "slurm-job.vk.io/flags"}

// Prefixes of annotations that name one option each: of slurm-bridge, and of berth.
const (
	slinky = "slurmjob.slinky.slurm.net/"
	own    = "slurm.berth.dev/"
)

// renamed maps slurm-bridge's names of options to sbatch's (slurm-bridge v1.2.1,
// internal/wellknown/annotations.go).
var renamed = map[string]string{
	"constraints": "constraint", "cpu-per-task": "cpus-per-task", "group-id": "gid", "max-nodes": "nodes", "mem-per-node": "mem",
	"min-nodes": "nodes", "timelimit": "time", "user-id": "uid",
}

// foreign maps annotations without a meaning in berth to the reason or what to use instead. A name
// that ends with a slash is a prefix. Annotations that are not in it are ignored without a message.
var foreign = map[string]string{
	"slurm-job.knoc.io/mpi-flags":  "start mpiexec in the container's command",
	"slurm-job.knoc.io/image-root": "name the image in the pod, and give files of images to 'berth up --image'",
	"slurm-job.vk.io/mpi-flags":    "start mpiexec in the container's command",
	"slurm-job.vk.io/image-root":   "name the image in the pod, and give files of images to 'berth up --image'",
	"slurm-job.vk.io/pre-exec":     "no batch script runs: use an init container, or a postStart hook",
	"slurm-job.vk.io/flavor":       "name partition and time with slurm.berth.dev/ annotations",
	"slurm-job.vk.io/":             "containerd runs the pod, not Singularity or enroot: use volumes and the securityContext",
	"interlink.eu/":                "pods have the network of the cluster: delete it",
}

// meaningless maps options of sbatch that mean nothing for the job of a node to the reason or what to
// use instead.
var meaningless = map[string]string{
	":":            "a pod is one job: use a pod for each component",
	"array":        "use a Job with completions",
	"wrap":         "the containers are the program of the job",
	"output":       "the output of a pod is in kubectl logs",
	"error":        "the output of a pod is in kubectl logs",
	"input":        "containers have no input from a file: mount the file",
	"open-mode":    "the output of a pod is in kubectl logs",
	"chdir":        "set workingDir of the container",
	"export":       "set env of the container",
	"export-file":  "set envFrom of the container",
	"get-user-env": "set env of the container",
	"umask":        "set it in the container's command",
	"propagate":    "set limits with ulimit in the container's command",
	"hold":         "use schedulingGates of the pod",
	"test-only":    "it submits no job",
	"uid":          "the job runs as you",
	"gid":          "the job runs as you",
	"clusters":     "nodes of another Slurm cannot join: start a cluster there",
	"priority":     "only operators of Slurm may set it: use nice",
	"comment":      "berth finds its jobs by their comments: use wckey or job-name",
	"requeue":      "the controller of the pod starts another one: use a Job or a Deployment",
	"no-requeue":   "the controller of the pod starts another one: use a Job or a Deployment",
	"signal":       "use a preStop hook and terminationGracePeriodSeconds",
	"no-kill":      "a node that is lost does not end the others",

	"ntasks-per-core": "a pod starts no tasks: request CPUs", "ntasks-per-gpu": "a pod starts no tasks: request CPUs",
	"ntasks-per-socket": "a pod starts no tasks: request CPUs", "ntasks-per-tres": "a pod starts no tasks: request CPUs",
	"tres-per-task": "a pod starts no tasks: use gres", "distribution": "a pod starts no tasks", "overcommit": "a pod starts no tasks",
	"cpu-bind": "a pod starts no tasks", "mem-bind": "a pod starts no tasks", "gpu-bind": "a pod starts no tasks", "tres-bind": "a pod starts no tasks",
}

// stops lists the options that keep a job from starting. A pod with one of them gets no job.
const stops = " hold test-only "

// wishes returns the wishes of a pod and of the objects above it, the strongest last.
func (r *reader) wishes(pod *v1.Pod, owners []Owner) []wish {
	var all []wish
	for _, key := range flags {
		if line, ok := pod.Annotations[key]; ok {
			all = append(all, r.flags(key, line)...)
		}
	}
	// slurm-bridge reads only the topmost object: the PodGroup of scheduler-plugins, or else the
	// topmost controller (v1.2.1, internal/utils/slurmjobir). Here it is the strongest.
	all = append(all, r.named(slinky, slinky, pod.Annotations)...)
	for _, owner := range owners {
		all = append(all, r.named(slinky, owner.Kind+" "+owner.Name+": "+slinky, owner.Annotations)...)
	}
	all = append(all, r.named(own, own, pod.Annotations)...)
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		prefix, _, _ := strings.Cut(key, "/")
		if why := foreign[key]; why != "" {
			r.problem(key, false, "%s", why)
		} else if why := foreign[prefix+"/"]; why != "" && !slices.Contains(flags, key) {
			r.problem(key, false, "%s", why)
		}
	}
	return all
}

// flags splits a command line as sbatch splits a #SBATCH line: HPK, KNoC and interLink write such
// lines.
func (r *reader) flags(key, line string) []wish {
	if len(line) > longest {
		r.problem(key, true, "it has more than %d bytes", longest)
		return nil
	}
	var words []string
	var err error
	for one := range strings.Lines(line) { // a comment ends only its line
		var more []string
		if more, err = batch.SplitDirective(one); err != nil {
			break
		}
		words = append(words, more...)
	}
	var parsed batch.Arguments
	if err == nil {
		parsed, err = batch.Split(words, func(string) (takesValue, ok bool) { return false, false })
	}
	switch {
	case err != nil:
		r.problem(key, true, "%v", err)
		return nil
	case len(parsed.Command) > 0:
		r.problem(key, true, "%q is not an option of sbatch", parsed.Command[0])
		return nil
	}
	var all []wish
	for _, option := range parsed.Options {
		all = append(all, wish{from: key, option: option})
	}
	return all
}

// named reads annotations with a prefix that name one option each. In messages, from replaces the
// prefix.
func (r *reader) named(prefix, from string, annotations map[string]string) []wish {
	var all []wish
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, ok := strings.CutPrefix(key, prefix)
		if !ok || prefix == own && (name == gangName || name == gangSize) {
			continue
		}
		from, value := from+name, annotations[key]
		if other := renamed[name]; prefix == slinky && other != "" {
			name = other
			if other == "mem" || other == "cpus-per-task" {
				quantity, err := resource.ParseQuantity(value)
				if err != nil {
					r.problem(from, true, "%q is not a quantity of Kubernetes: %v", value, err)
					continue
				}
				value = strconv.FormatInt(quantity.Value(), 10)
				if other == "mem" {
					value = strconv.FormatInt(quantity.Value()>>10, 10) + "K"
				}
			}
		}
		without := false
		if permit.In(noValue, name) || name == "exclusive" {
			switch yes := strings.ToLower(strings.TrimSpace(value)); {
			case yes == "false":
				value, without = "", true
			case yes == "true", prefix == slinky && name == "exclusive":
				value = "" // slurm-bridge takes every value but false for yes
			}
		}
		all = append(all, wish{from, batch.Option{Name: name, Value: value}, without})
	}
	return all
}
