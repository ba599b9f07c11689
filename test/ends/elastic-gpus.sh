#!/bin/bash
# In the shell of an allocation of one node without GPUs. Pods bring nodes with the GPUs that they
# request.
set -euo pipefail
shopt -s inherit_errexit
image=$1 here=${0%/*}
export PATH=$PATH:/srv/ends/dist/libexec/berth
. "$here/elastic-lib.sh"
trap 'elastic_debris' ERR
berth up --elastic=3 --elastic-idle=5s --image "$image"
eval "$(berth up --env 2>/dev/null)"
kubectl apply -f "$here/elastic-gpus.yaml" >/dev/null
kubectl wait --for=condition=Ready pod/one pod/two --timeout=120s >/dev/null
for pod in one two; do
	node=$(kubectl get pod $pod -o jsonpath='{.spec.nodeName}')
	echo "$pod: $(squeue -h -j "${node##*-}" -O tres-per-node:40 | xargs), $(kubectl get node "$node" -o jsonpath='{.status.allocatable.nvidia\.com/gpu}') on its node, sees $(kubectl exec $pod -- sh -c 'ls /dev | grep "^nvidia[0-9]" | wc -l')"
done
until events NoNodeRequested | grep -q 'Slurm refuses the job of a node for it: '; do sleep 0.2; done
kubectl delete pods --all >/dev/null
until_nodes n1
berth down
exit 7
