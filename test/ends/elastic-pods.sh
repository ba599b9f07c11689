#!/bin/bash
# In the shell of an allocation of one node. Pods that do not fit bring nodes, which leave when
# they have no pods.
set -euo pipefail
shopt -s inherit_errexit
image=$1 here=${0%/*}
export PATH=$PATH:/srv/ends/dist/libexec/berth
. "$here/elastic-lib.sh"
trap 'elastic_debris' ERR
berth up --elastic=2 --elastic-idle=5s --image "$image"
eval "$(berth up --env 2>/dev/null)"
kubectl apply -f "$here/elastic-pods.yaml"
echo "on $(everyone_answers)"
pilots | sed 's/^/no pilot yet: /'

# One pod more than the first node holds brings one pilot.
kubectl scale deployment/web --replicas=4
first=$(until_pilots 1)
echo "more: $(everyone_answers)" | sed "s/-$first/-PILOT/"
echo "jobs $(pilots | wc -l)"
events NodeRequested NodeStarted | grep -o "job $first brings a node" | sort -u | sed "s/job $first/job PILOT/"

# A pilot without pods leaves.
kubectl scale deployment/web --replicas=0
until_nodes n1
until [[ -z $(pilots) && -z $(records) ]]; do sleep 0.2; done

# A claim does not go to a node of another job, and its pod has an event with the reason.
kubectl apply -f "$here/elastic-claim.yaml"
until events NoNodeRequested | grep -q 'claim data is of the class local'; do sleep 0.2; done
echo "claim: $(pilots | wc -l) jobs"
kubectl delete -f "$here/elastic-claim.yaml" --wait=false

# Slurm refuses what no node has, and the pod has an event at once.
kubectl apply -f "$here/elastic-large.yaml"
until events NoNodeRequested | grep 'Slurm refuses' | sed 's/.*Slurm/Slurm/' >"$HOME/refused" && [[ -s $HOME/refused ]]; do sleep 0.2; done
cat "$HOME/refused"
kubectl delete pod large --wait=false

# With n3 occupied, one pilot runs and one waits. More than two nodes are not requested.
busy=$(sbatch --parsable -w n3 --exclusive -o /dev/null --wrap 'exec sleep 1000')
until [[ $(squeue -h -j "$busy" -o %T) == RUNNING ]]; do sleep 0.2; done
kubectl scale deployment/web --replicas=16
until [[ $(squeue -h -n "berth-join-$SLURM_JOB_ID" -o %T | sort | xargs) == 'PENDING RUNNING' ]]; do sleep 0.2; done
until events NodeRequested | grep -q 'waits in Slurm.s queue: Resources\|waits in Slurm.s queue: Priority'; do sleep 0.2; done
until events NoNodeRequested | grep -q 'needs 1 seat (free: 0)'; do sleep 0.2; done
echo 'one waits'
berth status | grep '^seats\|^job [0-9]*  *\(running\|pending\)' | sed 's/^job [0-9]*/pilot/; s/  */ /g'

# A pilot that waits is cancelled when no pod needs it. The other one stays: it has pods.
running=$(kubectl get pods -l app=web --field-selector=status.phase=Running --no-headers | wc -l)
kubectl scale deployment/web --replicas="$running" # which deletes pods that wait
until [[ $(squeue -h -n "berth-join-$SLURM_JOB_ID" -o %T | xargs) == RUNNING ]]; do sleep 0.2; done
echo "fewer: $(everyone_answers)" | sed "s/n2-[0-9]*/n2-PILOT/"

# The end of the cluster ends all pilots.
kubectl scale deployment/web --replicas=16
until [[ $(squeue -h -n "berth-join-$SLURM_JOB_ID" -o %T | sort | xargs) == 'PENDING RUNNING' ]]; do sleep 0.2; done
berth down
scancel "$busy"
until [[ -z $(pilots) ]]; do sleep 0.2; done
echo 'no job is left'
rm -f "$HOME/refused"
exit 7
