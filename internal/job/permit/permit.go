// Package permit decides which options of sbatch a Kubernetes object may use. The job runs as the
// user of the cluster, and somebody else may have created the object.
//
// What an option means for a batch script or for a node that joins belongs to packages script and
// wishes.
package permit

import (
	"fmt"
	"strings"
	"unicode"

	"berth.dev/berth/internal/job/batch"
)

// Denied reports an option of sbatch that an object may not use.
type Denied struct{ Option, Why string }

func (d *Denied) Error() string { return fmt.Sprintf("sbatch option --%s: %s", d.Option, d.Why) }

// Placement and Resources list options that an object may use with any value that Check permits.
// Other options act on other users or clusters, on files, or on limits of the site, or are unknown.
const (
	// Placement options choose the place, time and account of a job, and notifications.
	Placement = " account begin cluster-constraint constraint contiguous cores-per-socket cpu-freq deadline dependency exclude " +
		"exclusive extra-node-info gpu-freq gres-flags hint job-name kill-on-invalid-dep licenses mail-type mail-user nice nodelist " +
		"oversubscribe partition prefer qos reservation sockets-per-node spread-job switches threads-per-core time time-min tmp " +
		"use-min-nodes wckey "
	// Resources options choose how much a job has.
	Resources = " cpus-per-gpu cpus-per-task gpus gpus-per-node gpus-per-socket gpus-per-task gres mem mem-per-cpu mem-per-gpu mincpus " +
		"nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres tasks-per-node tres-per-task "
	// Ignored options change only what sbatch prints or waits for.
	Ignored = " parsable quiet verbose wait ignore-pbs "
)

// In reports whether a list contains an option.
func In(list, option string) bool {
	return option != "" && !strings.Contains(option, " ") && strings.Contains(list, " "+option+" ")
}

// Check returns a *Denied if no object may use the value of an option.
func Check(option batch.Option) error {
	name, value := option.Name, option.Value
	switch {
	case strings.ContainsFunc(value, unicode.IsControl):
		return &Denied{name, "its value has control characters"}
	case name == "job-name" && (strings.Contains(value, "/") || value == ".." || value == "."):
		// It would change the folder of an output file with %x in its path.
		return &Denied{name, fmt.Sprintf("the name %q may not be a path", value)}
	case (name == "nodelist" || name == "exclude") && strings.Contains(value, "/"):
		return &Denied{name, "list the nodes instead of a file"}
	case name == "gres" && (strings.EqualFold(value, "help") || strings.EqualFold(value, "list")):
		return &Denied{name, "it submits no job"}
	case name == "mail-user" && strings.HasPrefix(value, "-"):
		// slurmctld gives the value to Slurm's MailProg as an argument.
		return &Denied{name, "give an address or a user"}
	}
	return nil
}
