package devices

import (
	"slices"
	"strconv"
	"strings"
)

// GPUs says which GPUs of a machine a job has.
type GPUs struct {
	// Numbers are those of the device files, as Slurm counts GPUs; nil where
	// Slurm says nothing.
	Numbers []string
	// Visible are the positions, among the GPUs that can be opened, or the
	// UUIDs of those to use; nil means all of them.
	Visible []string
	// Job is true inside of a job, where only what it was given is used.
	Job bool
}

// visibleVariables are what programs for NVIDIA's and AMD's GPUs obey.
var visibleVariables = []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}

// FromEnv reads the environment that this node's task has. numbers are what
// Slurm says of its GPUs.
//
// In a job whose devices are constrained, Slurm counts the visible ones anew
// from 0, so its own numbers count, if there are some.
func FromEnv(getenv func(string) string, inJob bool, numbers []string) GPUs {
	gpus := GPUs{Numbers: numbers, Job: inJob}
	for _, variable := range visibleVariables {
		if value := getenv(variable); value != "" {
			gpus.Visible = strings.Split(value, ",")
			break
		}
	}
	return gpus
}

// None tells whether there can be no GPU.
func (g GPUs) None() bool {
	if g.Job && g.Numbers == nil && g.Visible == nil {
		return true
	}
	return g.Numbers == nil && slices.ContainsFunc(g.Visible, func(v string) bool { return v == "NoDevFiles" || v == "void" })
}

// firstRenderNode is the number of the first file /dev/dri/renderD*.
const firstRenderNode = 128

// choose returns those of all, in their order, that the job has.
func (g GPUs) choose(all []gpu, found *Found) []gpu {
	var chosen []gpu
	pick := func(id, source string, is func(int, gpu) bool) {
		for i, candidate := range all {
			if is(i, candidate) {
				chosen = append(chosen, candidate)
				return
			}
		}
		found.notice("GPU %s, which %s names, is not offered: there is no such device that can be opened", id, source)
	}
	switch {
	case g.Numbers != nil:
		for _, id := range g.Numbers {
			n, err := strconv.Atoi(id)
			pick(id, "Slurm", func(_ int, candidate gpu) bool {
				return err == nil && (candidate.number == n || candidate.number == firstRenderNode+n)
			})
		}
	case g.Visible != nil:
		for _, id := range g.Visible {
			n, err := strconv.Atoi(id)
			if err == nil && n < 0 {
				break // CUDA sees nothing from here on
			}
			if strings.HasPrefix(id, "MIG-") {
				found.notice("%s is a part of a GPU (MIG), which is not offered to pods", id)
				continue
			}
			pick(id, "the environment", func(i int, candidate gpu) bool {
				return err == nil && i == n || err != nil && id != "" && strings.HasPrefix(candidate.uuid, id)
			})
		}
	default:
		return all
	}
	return chosen
}
