#!/bin/bash
# Serves SlurmJobs of the berth cluster that runs this script, and kills the controller between
# the steps of a submission. The exit code is 0 if each object's script ran once.
set -euo pipefail
mkdir ~/objects ~/objects/tools
cd ~/objects
export KUBECACHEDIR=$PWD/cache
kind=slurmjob
. "${0%/*}/objects-status.sh"

# These commands of Slurm kill the controller that calls them, once, if the file exists. The
# comment of the submitted job is changed, as a plugin of a site does it.
cat >tools/sbatch <<'END'
#!/bin/bash
job=$(/usr/bin/sbatch "$@") || exit
if rm ~/objects/kill-after-sbatch 2>/dev/null; then
	/usr/bin/scontrol update "jobid=$job" comment=site
	kill -KILL $PPID
fi
echo "$job"
END
cat >tools/scontrol <<'END'
#!/bin/bash
if [[ $1 == release ]] && rm ~/objects/kill-before-release 2>/dev/null; then
	kill -KILL $PPID
	exit
fi
exec /usr/bin/scontrol "$@"
END
chmod +x tools/*

fail() {
	kubectl get slurmjobs -A -o custom-columns=NAME:.metadata.name,STATUS:.status
	squeue --states=all
	echo "ran: $(cat ran 2>&1)"
	echo "FAILED: $*"
	exit 1
}
manifest() { # NAME COMMAND
	printf '%s\n' 'apiVersion: wlm.sylabs.io/v1alpha1' 'kind: SlurmJob' "metadata: {name: $1}" "spec: {batch: \"#!/bin/sh\\n#SBATCH --mem=10 --output=/dev/null\\necho $1 >>$PWD/ran\\n$2\\n\"}"
}
serve() { # OPTION...
	[[ $# -gt 0 ]] || set -- -n default --trust-namespace
	PATH=$PWD/tools:$PATH berth slurm-jobs "$@" --root "$PWD" --state-dir "$PWD/state" &
	controller=$!
}
# killed waits until the controller is killed. Nobody else has its lease, so the next one need not
# wait until it expires.
killed() {
	local code=0
	wait "$controller" || code=$?
	[[ $code == 137 ]] || fail "exit code $code of the controller"
	kubectl delete lease berth-slurm-jobs
}
queued() { squeue --noheader --states=all --name="default.$1" --format='%i %r %k'; }

berth slurm-jobs setup -n default --user admin --trust-namespace | kubectl apply -f -
kubectl wait --for=condition=Established --timeout=60s crd/slurmjobs.wlm.sylabs.io crd/bridgejobs.bridgejob.ibm.com

# In another namespace, a policy lets only alice create objects. Its effect begins after a minute,
# so the rest comes last. The controller has the rights that setup gave it.
carol=system:serviceaccount:lab:carol
kubectl create namespace lab
kubectl create serviceaccount carol -n lab
berth slurm-jobs setup -n lab --user "$carol" --allow-users alice | kubectl apply -f -
settled=$((SECONDS + 62))
kubectl create rolebinding mallory -n lab --role=berth-slurm-jobs-users --user=mallory
manifest early true | kubectl create --as alice -n lab -f -
cp "$KUBECONFIG" carol.conf
kubectl --kubeconfig carol.conf config set-credentials carol --token="$(kubectl create token carol -n lab --duration=1h)" >carol
kubectl --kubeconfig carol.conf config set-context --current --user=carol >carol

# Killed after the submission: the next controller finds the job by its script. Killed before the
# release: the job is released later.
manifest lost true | kubectl create -f -
touch kill-after-sbatch
serve
killed
job=$(queued lost)
[[ $job == *' JobHeldUser site' ]] || fail "after the submission: $job"
touch kill-before-release
serve
killed
is lost jobID "${job%% *}" || fail "another job than $job"
serve
await 120 is lost state COMPLETED

# Partitions of another account and of another group, and the script of another user. Slurm accepts
# the job for another account, and does not start it.
for name in account group; do
	manifest "$name" true | sed "s/--mem=10/& --partition=$name/" | kubectl create -f -
done
await 60 contains account reason 'account not known, so it can'
is account state PENDING || fail 'a job of another account'
kubectl delete slurmjob account
await 60 is group state REJECTED
[[ $(field group message) == 'Slurm rejected the job: '*"User's group not permitted"* ]] || fail 'a job of another group'
kubectl create -f - <<'END'
apiVersion: bridgejob.ibm.com/v1alpha1
kind: BridgeJob
metadata: {name: unreadable}
spec: {jobdata: {scriptlocation: remote, jobscript: /var/tmp/unreadable.sh}}
END
unreadable() { kubectl get bridgejob unreadable -o jsonpath='{.status.state} {.status.message}'; }
rejects() { [[ $(unreadable) == REJECTED' '* ]]; }
await 60 rejects
[[ $(unreadable) == *"the file belongs to root, who can run 'chmod a+r /var/tmp/unreadable.sh'"* ]] || fail "$(unreadable)"

# slurmctld is away.
echo 'stop slurmctld'
await 120 test -e stopped
manifest away true | kubectl create -f -
await 120 contains away message 'Slurm is unavailable'
echo 'start slurmctld'
await 120 is away state COMPLETED

# An object is edited before its lost job is found. The new version runs. Then Slurm forgets the job
# while there is no controller.
touch kill-after-sbatch
manifest forgotten 'exit 4' | kubectl create -f -
killed
manifest forgotten "until [ -e $PWD/end ]; do sleep 0.1; done; exit 3" | sed 's/echo forgotten/echo edited/' | kubectl replace -f -
serve
await 120 is forgotten state RUNNING
kill -KILL "$controller"
killed
touch end
unlisted() { [[ $(queued forgotten) == '' ]]; }
await 120 unlisted
serve
await 120 is forgotten state FAILED
is forgotten exitCode 3 || fail "exit code $(field forgotten exitCode)"

kill "$controller"
wait "$controller"

# Only alice's object of now becomes a job.
past() { ((SECONDS > settled)); }
await 62 past
serve -n lab --allow-users alice --kubeconfig carol.conf
! manifest mallory true | kubectl create --as mallory -n lab -f - 2>refused || fail 'an object of mallory'
grep -q 'who does not trust you' refused || fail "$(cat refused)"
manifest alice true | kubectl create --as alice -n lab -f -
namespace=lab
await 120 is alice state COMPLETED
await 120 is early state REJECTED
kill "$controller"
wait "$controller"
[[ $(sort ran | tr '\n' ' ') == 'alice away edited lost ' ]] || fail "ran: $(cat ran)"
echo 'each job ran once'
