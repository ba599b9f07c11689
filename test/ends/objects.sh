# shellcheck shell=bash
# Slurm jobs of Kubernetes objects.

# Each object has one job, which runs once, although the controller is killed at the moments
# that matter and slurmctld is away and forgets jobs. A policy admits only objects of one user.
slurm_objects() {
	begin a alice n1 berth run -- bash $here/objects-served.sh
	timeout=200 says a 'stop slurmctld'
	"$bed" run ctl pkill -KILL -x slurmctld
	poll 20 no_slurmctld || fail "slurmctld does not end"
	"$bed" run --user alice n1 touch objects/stopped
	timeout=200 says a 'start slurmctld'
	"$bed" run ctl slurmctld || fail "slurmctld does not start"
	timeout=280 ends a 0
	says a 'each job ran once'
	"$bed" run --user alice n1 rm -rf objects
}

no_slurmctld() { ! "$bed" run ctl pgrep -x slurmctld >/dev/null; }
