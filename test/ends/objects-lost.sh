#!/bin/bash
# Runs in a berth cluster with --slurm-jobs, in a folder that all nodes share. SlurmJobs whose node
# is lost, that another job preempts, and that Slurm forgets. Each has one job.
set -euo pipefail
export KUBECACHEDIR=$PWD/kube-cache

fail() {
	kubectl get slurmjobs -o custom-columns=NAME:.metadata.name,STATUS:.status
	squeue --states=all
	sacct --duplicates --allocations --allusers --format=JobID,JobName,State,ExitCode,Start,End
	cat ran
	echo "FAILED: $*"
	exit 1
}
await() { kubectl wait --timeout=150s "$@" || fail "no success: wait $*"; }
runs() { await --for=jsonpath='{.status.state}'=RUNNING "$@"; }
# has NAME PATTERN waits until the fields state, restarts and exitCode match.
has() {
	local deadline=$((SECONDS + 150))
	# shellcheck disable=SC2053
	until [[ $(kubectl get slurmjob "$1" -o 'jsonpath={.status.state} {.status.restarts} {.status.exitCode}') == $2 ]]; do
		((SECONDS < deadline)) || fail "$1 is $(kubectl get slurmjob "$1" -o 'jsonpath={.status}'), want $2"
		sleep 0.2
	done
}
# job NAME COMMAND OPTION... creates a SlurmJob that runs COMMAND at each start but the first one
# of a requeued job.
job() {
	local name=$1 command=$2
	shift 2
	kubectl create -f - <<-END
		apiVersion: wlm.sylabs.io/v1alpha1
		kind: SlurmJob
		metadata: {name: $name}
		spec:
		  batch: |
		    #!/bin/sh
		    #SBATCH --output=/dev/null --mem=100 $*
		    echo "$name \${SLURM_RESTART_COUNT:-0}" >>ran
		    $command
	END
}
first='[ -n "$SLURM_RESTART_COUNT" ] || sleep 1000'

job requeued "$first; exit 3" --requeue --nodelist=n3
job lost 'sleep 1000' --no-requeue --nodelist=n3
job bumped "$first" --requeue --partition=low --nodelist=n2
job preempted 'sleep 1000' --no-requeue --partition=low --nodelist=n2
runs slurmjob/requeued slurmjob/lost slurmjob/bumped slurmjob/preempted
echo 'lose n3'
job preempting true --partition=high --nodelist=n2 --cpus-per-task=2
has preempting 'COMPLETED  0'
has preempted 'PREEMPTED  *'
has bumped 'COMPLETED 1 0'
has lost 'NODE_FAIL  *'
echo 'start n3'
has requeued 'FAILED 1 3'

# Slurm loses its state. Only its accounting knows how the job ended.
job forgotten 'sleep 1000' --nodelist=n2
runs slurmjob/forgotten
echo 'clear slurmctld'
has forgotten 'CANCELLED  *'
job next 'exit 4' --nodelist=n3
has next 'FAILED  4'

[[ $(sort ran | tr '\n' ,) == 'bumped 0,bumped 1,forgotten 0,lost 0,next 0,preempted 0,preempting 0,requeued 0,requeued 1,' ]] || fail "starts of jobs"
# sacct lists each start of a requeued job with the same number, and a job some seconds after its end.
counts() { sacct --duplicates --allocations --noheader --parsable2 --format=JobName,JobIDRaw | sort -u | cut -d'|' -f1 | uniq -c | xargs; }
deadline=$((SECONDS + 60))
until [[ $(counts) == *default.next* ]]; do
	((SECONDS < deadline)) || fail "the accounting: $(counts)"
	sleep 0.2
done
for name in requeued lost bumped preempted preempting forgotten next; do
	[[ " $(counts) " == *" 1 default.$name "* ]] || fail "jobs of $name: $(counts)"
done
echo 'each object has one job'
