#!/bin/bash
# In the shell of an allocation of one node. Nodes of other jobs join its cluster and leave
# it: one when its job is cancelled, one when its berth is killed, and one with the cluster.
set -euo pipefail
shopt -s inherit_errexit
image=$1 here=${0%/*}
export PATH=$PATH:/srv/ends/dist/libexec/berth
berth up --elastic=2 --image "$image"
eval "$(berth up --env 2>/dev/null)"
join() { sbatch --parsable -N1 --mem=1500 -o "$HOME/join-%j" --wrap "exec berth join $SLURM_JOB_ID"; }
# nodes prints the names of the nodes. A colon and the state follow the name of a node that is not
# ready, or takes no pods.
nodes() { kubectl get nodes --no-headers | awk '{print $1 ($2 == "Ready" ? "" : ":" $2)}' | sort | xargs; }
until_nodes() { until [[ $(nodes) == "$*" ]]; do sleep 0.2; done; }
# Every pod answers to every other one, at its address and by the Service.
everyone_answers() {
	local pods addresses pod address
	kubectl rollout status deployment/web --timeout=60s >/dev/null
	pods=$(kubectl get pods -l app=web -o jsonpath='{.items[*].metadata.name}')
	addresses=$(kubectl get pods -l app=web -o jsonpath='{.items[*].status.podIP}')
	for pod in $pods; do
		for address in $addresses web; do
			kubectl exec "$pod" -- wget -T 10 -qO- "http://$address:8080" >/dev/null
		done
	done
	kubectl get pods -l app=web -o jsonpath='{.items[*].spec.nodeName}' | xargs -n1 | sort -u | xargs
}
first=$(join)
second=$(join)
until_nodes n1 "n2-$first" "n3-$second"
kubectl apply -f "$here/elastic.yaml"
echo "on $(everyone_answers)"
kubectl logs -l app=web --tail=-1 | grep -c 'listens' | sed 's/^/listeners /'
kubectl get node "n2-$first" -o jsonpath='job {.metadata.labels.slurm\.berth\.dev/job}{"\n"}' | sed "s/$first/first/"
# A job does not join itself.
berth join "$SLURM_JOB_ID" --node-wait 1s && exit 91 || [[ $? == 64 ]]
scancel "$first"
until_nodes n1 "n3-$second"
echo "left: $(everyone_answers)"
grep -c 'in order' "$HOME/join-$first" || true
third=$(join)
until_nodes n1 "n2-$third" "n3-$second"
echo ready to lose one
until_nodes n1 "n2-$third"
echo "lost: $(everyone_answers)"
kubectl get pods -A --no-headers -o wide | grep -v "n1 \|n2-$third " || echo 'no pod is elsewhere'
berth down
until [[ -z $(squeue -h -u "$USER" -n wrap) ]]; do sleep 0.2; done
cat "$HOME/join-$third"
rm "$HOME"/join-*
exit 7
