package devices

import (
	"slices"
	"strconv"
	"strings"
)

// GPUs describes which GPUs of a machine a job has.
type GPUs struct {
	// Numbers are the numbers of the device files, as Slurm counts GPUs; nil if
	// Slurm gives none.
	Numbers []string
	// Visible lists the GPUs to use: their UUIDs, or their positions among the GPUs that
	// can be opened. nil means all of them.
	Visible []string
	// Job is set inside a job, which may use only the GPUs that Slurm gave it.
	Job bool
}

// visibleVariables restrict programs to some of NVIDIA's or AMD's GPUs.
var visibleVariables = []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}

// FromEnv reads the environment of this node's task. numbers are Slurm's numbers
// of its GPUs.
//
// In a job with constrained devices, the variables number the visible GPUs from 0 again, so
// numbers takes precedence over them if it is not empty.
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

// none reports whether there can be no GPU.
func (g GPUs) none() bool {
	if g.Job && g.Numbers == nil && g.Visible == nil {
		return true
	}
	return g.Numbers == nil && slices.ContainsFunc(g.Visible, func(v string) bool { return v == "NoDevFiles" || v == "void" })
}

// firstRenderNode is the number of the first file /dev/dri/renderD*.
const firstRenderNode = 128

// choose returns the job's GPUs among all, in the order of Numbers or Visible. found
// receives a notice for each GPU that is not offered.
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
