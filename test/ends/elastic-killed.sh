#!/bin/bash
# In the shell of an allocation of one node. The loop that submits pilots is killed with SIGKILL at
# three moments: before the number of a held job is stored, before the job is released, and after
# its release. Each time, one job becomes a node. Then the head is killed.
set -euo pipefail
shopt -s inherit_errexit
image=$1 here=${0%/*}
. "$here/elastic-lib.sh"
trap 'elastic_debris' ERR
mkdir "$HOME/spies"
# The commands of Slurm that the loop calls. One kills its caller if the file of a moment exists.
cat >"$HOME/spies/sbatch" <<'SPY'
#!/bin/bash
[[ " $* " != *' --test-only '* ]] || exec /usr/bin/sbatch "$@"
job=$(/usr/bin/sbatch "$@") || exit
echo "$job" >>"$HOME/submitted"
! rm "$HOME/kill-held" 2>/dev/null || kill -KILL "$PPID"
echo "$job"
SPY
cat >"$HOME/spies/scontrol" <<'SPY'
#!/bin/bash
[[ $1 == release ]] || exec /usr/bin/scontrol "$@"
! rm "$HOME/kill-stored" 2>/dev/null || { kill -KILL "$PPID"; exit; }
/usr/bin/scontrol "$@"
! rm "$HOME/kill-released" 2>/dev/null || kill -KILL "$PPID"
SPY
chmod +x "$HOME"/spies/*
PATH=$HOME/spies:$PATH berth up --elastic=2 --elastic-idle=2s --image "$image"
export PATH=$PATH:/srv/ends/dist/libexec/berth
eval "$(berth up --env 2>/dev/null)"
kubectl apply -f "$here/elastic-pods.yaml"
for moment in held stored released; do
	touch "$HOME/kill-$moment"
	kubectl scale deployment/web --replicas=4 # one more than the first node holds
	kubectl rollout status deployment/web --timeout=120s >/dev/null
	[[ ! -e $HOME/kill-$moment ]] || exit 91
	echo "$moment: $(wc -l <"$HOME/submitted") submitted, $(pilots | wc -l) in the queue, $(records | wc -l) records"
	rm "$HOME/submitted"
	kubectl scale deployment/web --replicas=0
	until_nodes n1
	until [[ -z $(pilots) && -z $(records) ]]; do sleep 0.2; done
done
# A pilot waits when the head of the cluster is killed. Nobody needs it any more.
busy=$(sbatch --parsable -w 'n[2-3]' --exclusive -o /dev/null --wrap 'exec sleep 1000')
until [[ $(squeue -h -j "$busy" -o %T) == RUNNING ]]; do sleep 0.2; done
kubectl scale deployment/web --replicas=4
until [[ $(squeue -h -n "berth-join-$SLURM_JOB_ID" -o %T) == PENDING && -n $(events NodeRequested | grep 'waits in Slurm') ]]; do sleep 0.2; done
echo ready to lose the head
until [[ -z $(pilots) ]]; do sleep 0.2; done
scancel "$busy"
rm -r "$HOME/spies" "$HOME/submitted"
exit 7
