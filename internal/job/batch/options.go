package batch

import "strings"

// value distinguishes options with a value from others.
type value int

const (
	unknown  value = iota // not in the table: of a plugin, or of a newer Slurm
	none                  // --hold
	required              // --time VALUE or --time=VALUE
	optional              // --nice or --nice=VALUE
)

// letters maps sbatch's options of one letter to their long names.
var letters = map[byte]string{
	'A': "account", 'a': "array", 'B': "extra-node-info", 'b': "begin", 'C': "constraint", 'c': "cpus-per-task",
	'D': "chdir", 'd': "dependency", 'e': "error", 'F': "nodefile", 'G': "gpus", 'H': "hold", 'h': "help",
	'i': "input", 'J': "job-name", 'k': "no-kill", 'L': "licenses", 'M': "clusters", 'm': "distribution",
	'N': "nodes", 'n': "ntasks", 'O': "overcommit", 'o': "output", 'p': "partition", 'Q': "quiet", 'q': "qos",
	'S': "core-spec", 's': "oversubscribe", 't': "time", 'V': "version", 'v': "verbose", 'W': "wait",
	'w': "nodelist", 'x': "exclude",
}

// Options of sbatch in Slurm 20.11 to 25.11 (src/common/slurm_opt.c). The output of
// sbatch --help is no source: it shows some options without the value that they need. An
// option that is missing here still works, see Split.
const (
	withoutValue = "contiguous external get-user-env help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot " +
		"consolidate-segments spread-job spread-segments stepmgr test-only umask usage use-min-nodes verbose version wait"
	withOptional = "exclusive nice no-kill oom-kill-step propagate requeue resv-ports"
	withValue    = "account acctg-freq alloc_nodelist array autocomplete batch bb bbf begin chdir cluster cluster-constraint clusters " +
		"comment constraint container container-id context core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline " +
		"delay-boot dependency distribution error exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus " +
		"gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type " +
		"mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mem-update mincpus network nodefile nodelist nodes ntasks " +
		"ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output partition power prefer " +
		"priority profile qos reservation resources runtime segment signal sockets-per-node switch_req switch_wait switches " +
		"tasks-per-node thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid wait-all-nodes wckey wrap"
)

// ofSubmission lists options that concern the submission and not the job.
const ofSubmission = "autocomplete help parsable quiet test-only usage verbose version wait"

// listed reports whether a list with spaces contains a name.
func listed(list, name string) bool { return strings.Contains(" "+list+" ", " "+name+" ") }

// find returns the full name of a long option and whether it takes a value. The name may be
// any prefix of only one option, as for getopt_long. find returns an unknown or ambiguous
// name unchanged.
func find(name string) (string, value) {
	lists := map[value]string{none: withoutValue, optional: withOptional, required: withValue}
	for takes, list := range lists {
		if listed(list, name) {
			return name, takes
		}
	}
	full, takes := name, unknown
	for kind, list := range lists {
		for candidate := range strings.FieldsSeq(list) {
			if !strings.HasPrefix(candidate, name) {
				continue
			}
			if takes != unknown {
				return name, unknown // sbatch lists the candidates
			}
			full, takes = candidate, kind
		}
	}
	return full, takes
}
