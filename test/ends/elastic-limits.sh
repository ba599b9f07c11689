#!/bin/bash
# In the shell of an allocation of one node. Slurm's limits keep jobs for nodes from the queue, or in
# it. The pods' events have the reason, and the nodes come when the limit has gone. The caller sets and
# lifts the limits.
set -euo pipefail
shopt -s inherit_errexit
image=$1 here=${0%/*}
export PATH=$PATH:/srv/ends/dist/libexec/berth
. "$here/elastic-lib.sh"
trap 'elastic_debris' ERR
berth up --elastic=4 --elastic-idle=2s --image "$image"
eval "$(berth up --env 2>/dev/null)"
kubectl apply -f "$here/elastic-pods.yaml" >/dev/null
kubectl rollout status deployment/web --timeout=60s >/dev/null

# limited LIMIT TEXT JOBS waits for the caller to set a limit, and until an event of a pod that does
# not fit has the text. Then the queue has that many jobs for nodes. When the caller has lifted the
# limit, the pod starts.
limited() {
	echo "set $1"
	until [[ -e $HOME/set-$1 ]]; do sleep 0.1; done
	kubectl scale deployment/web --replicas=4 >/dev/null
	until events NodeRequested NoNodeRequested | grep -q "$2"; do sleep 0.2; done
	echo "$1: $(pilots | wc -l) in the queue"
	until [[ -e $HOME/lifted-$1 ]]; do sleep 0.1; done
	kubectl rollout status deployment/web --timeout=120s >/dev/null
	kubectl scale deployment/web --replicas=0 >/dev/null
	until [[ -z $(pilots) && -z $(records) ]]; do sleep 0.2; done
	kubectl scale deployment/web --replicas=2 >/dev/null
	kubectl rollout status deployment/web --timeout=60s >/dev/null
	echo "$1: recovered"
}
limited submit 'Slurm takes no job for a new node now: .*SubmitJob.*; berth tries again'
limited run "waits in Slurm's queue: AssocMaxJobsLimit"
limited down "waits in Slurm's queue: PartitionDown"
limited inactive 'Slurm takes no job for a new node now: .*inactive.*; berth tries again'

# A time limit that no partition permits is refused, and the pod may ask for another one.
pod() { kubectl run "$1" --image=busybox:1.37 --restart=Never --annotations='slurm.berth.dev/partition=short' --annotations="slurm.berth.dev/time=$2" -- true >/dev/null; }
pod long 10
until events NoNodeRequested | grep -q 'Slurm \(refuses\|never starts\) the job of a node for it: .*[Tt]ime *[Ll]imit'; do sleep 0.2; done
echo "time: $(pilots | wc -l) in the queue"
pod short 5
kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/short --timeout=120s >/dev/null
echo 'time: the other pod has run'
berth down
until [[ -z $(pilots) ]]; do sleep 0.2; done
rm "$HOME"/{set,lifted}-*
exit 7
