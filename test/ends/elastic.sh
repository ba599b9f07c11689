#!/bin/bash
# In the shell of an allocation of one node. Nodes of other jobs join its cluster and leave
# it: one when its job is cancelled, one when its berth is killed, and one with the cluster.
set -euo pipefail
shopt -s inherit_errexit
image=$1 here=${0%/*}
export PATH=$PATH:/srv/ends/dist/libexec/berth
. "$here/elastic-lib.sh"
berth up --elastic=2 --image "$image"
eval "$(berth up --env 2>/dev/null)"
join() { sbatch --parsable -N1 --mem=1500 -o "$HOME/join-%j" --wrap "exec berth join $SLURM_JOB_ID"; }
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
