#!/bin/bash
# In the shell of an allocation of one node. Nodes that pods have brought leave: before the time
# limit of their job, without pods, and when their job is cancelled. Then others come for the pods
# that need one.
set -euo pipefail
shopt -s inherit_errexit
image=$1 web=$2 here=${0%/*}
export PATH=$PATH:/srv/ends/dist/libexec/berth
. "$here/elastic-lib.sh"
trap 'elastic_debris' ERR
mkdir "$HOME/volumes" "$HOME/tls"
berth up --elastic=3 --elastic-idle=5s --shared-volumes "$HOME/volumes" --image "$image" --image "$web"
eval "$(berth up --env 2>/dev/null)"

# pilot_of SELECTOR prints the job of the node that a pod runs on.
pilot_of() {
	local node
	node=$(kubectl get pods "$@" --field-selector=status.phase=Running -o jsonpath='{.items[0].spec.nodeName}' 2>/dev/null) && echo "${node##*-}"
}
notes=$HOME/volumes/default/notes/guard
kubectl apply -f "$here/elastic-leave.yaml" -f "$here/elastic-pods.yaml" >/dev/null
kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/alone --timeout=60s >/dev/null
echo "alone: $(kubectl logs alone --tail=1) on $(kubectl get pod alone -o jsonpath='{.spec.nodeName}')"
until grep -qs begins "$notes"; do sleep 0.2; done
first=$(pilot_of -l app=guard)
echo "a minute: $(squeue -h -j "$first" -o %l)"

# A DaemonSet keeps no node.
kubectl scale deployment/web --replicas=4 >/dev/null
kubectl rollout status deployment/web --timeout=120s >/dev/null
until [[ $(kubectl get pods -l app=each --field-selector=status.phase=Running --no-headers | wc -l) == 2 ]]; do sleep 0.2; done
second=$(kubectl get pods -l app=each -o jsonpath='{.items[*].spec.nodeName}' | xargs -n1 | sed -n 's/.*-//p')
kubectl scale deployment/web --replicas=0 >/dev/null
until [[ -z $(squeue -h -j "$second" -o %A 2>/dev/null) ]]; do sleep 0.2; done
echo 'idle: the pod of a DaemonSet keeps no node'

# Before its time limit, a node waits for a budget. Then its pods end all the same.
until events DisruptionBudget | grep -q 'its node leaves, and the pod ends at .* in any case: The disruption budget guard needs 1 healthy pods'; do sleep 0.2; done
until grep -q 'asked to end' "$notes"; do sleep 0.1; done
warned=$(date -d "$(kubectl get events --field-selector reason=DisruptionBudget -o jsonpath='{.items[0].firstTimestamp}')" +%s)
[[ $(sed -n 's/asked to end at //p' "$notes" | head -1) -gt $warned ]] && echo 'the budget was heeded first'
until [[ $(grep -c begins "$notes") == 2 ]]; do sleep 0.2; done
until scontrol show job "$first" | grep -q JobState=COMPLETED; do
	scontrol show job "$first" | grep -q 'JobState=\(RUNNING\|COMPLETING\)' || break
	sleep 0.2
done
echo "time limit: $(scontrol -o show job "$first" | grep -o 'JobState=[A-Z]*\|ExitCode=[0-9:]*' | head -2 | xargs)"
[[ $(pilot_of -l app=guard) == "$first" ]] || echo 'the pod is on another node'
kubectl delete deployment guard >/dev/null
until_nodes n1

# Every pod needs a webhook, whose pod leaves with its node.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=admit -addext subjectAltName=DNS:admit.hooks.svc \
	-keyout "$HOME/tls/key" -out "$HOME/tls/cert" 2>/dev/null
kubectl create namespace hooks >/dev/null
kubectl create secret tls tls -n hooks --cert "$HOME/tls/cert" --key "$HOME/tls/key" >/dev/null
sed "s/CLUSTER/$SLURM_JOB_ID/; s/BUNDLE==/$(base64 -w0 "$HOME/tls/cert")/" "$here/elastic-webhook.yaml" | kubectl apply -f - >/dev/null
kubectl rollout status deployment/admit -n hooks --timeout=120s >/dev/null
until kubectl run before --image=busybox:1.37 --restart=Never -- true 2>/dev/null; do sleep 0.2; done
hook=$(pilot_of -n hooks)
# It gets the hosts when the webhook leaves.
busy=$(sbatch --parsable -w 'n[2-3]' --exclusive -o /dev/null --wrap 'exec sleep 1000')
scancel "$hook"
until { kubectl run between --image=busybox:1.37 --restart=Never --dry-run=server -- true 2>&1 || true; } | grep -q 'failed calling webhook'; do sleep 0.1; done
echo 'the webhook is gone'
until [[ $(squeue -h -n "berth-join-$SLURM_JOB_ID" -t PENDING -o %A | wc -l) == 1 && $(squeue -h -j "$busy" -o %T) == RUNNING ]]; do sleep 0.2; done
scancel "$busy"
until kubectl run after --image=busybox:1.37 --restart=Never -- true 2>/dev/null; do sleep 0.5; done
echo 'another job brought the webhook back'
berth down
until [[ -z $(pilots) ]]; do sleep 0.2; done
rm -r "$HOME/volumes" "$HOME/tls"
exit 7
