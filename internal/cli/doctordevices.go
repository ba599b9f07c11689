package cli

import (
	"fmt"
	"strings"

	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/launch"
)

// checkDevices lists the devices that a cluster would offer to its pods here,
// including devices named in the settings.
func checkDevices(getenv func(string) string, named []string) probe.Result {
	r := probe.Result{Name: "devices", Title: "devices for pods", Level: probe.Optional, OK: probe.Yes}
	found, err := launch.FindDevices(getenv, named)
	if err != nil {
		r.OK, r.Found = probe.Unknown, err.Error()
		return r
	}
	var offers []string
	for _, resource := range found.Resources {
		offers = append(offers, fmt.Sprintf("%s: %d", resource.Name, len(resource.Units)))
	}
	r.Found = strings.Join(offers, ", ")
	if len(offers) == 0 {
		r.Found = "none; a job gets the GPUs that it requests from Slurm (--gpus), and --device adds other devices"
	}
	if len(found.Notices) > 0 {
		r.OK, r.Cost = probe.Degraded, strings.Join(found.Notices, "; ")
	}
	return r
}
