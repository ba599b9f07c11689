#!/bin/bash
# The fake GPUs of a bed, as pods see them: devices.sh GPUS-OF-EACH-NODE
set -uo pipefail
cd "$(dirname "$0")"

fail() { echo "FAILED: $*"; exit 1; }

kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} has {.status.allocatable.nvidia\.com/gpu}{"\n"}{end}' | sort
kubectl apply -f devices.yaml
kubectl rollout status --timeout=30s ds/without || fail "pods without a GPU do not start"
kubectl rollout status --timeout=30s ds/with || fail "pods with a GPU do not start"

pods() { kubectl get pods -l "app=$1" -o jsonpath='{range .items[*]}{.metadata.name} {.spec.nodeName}{"\n"}{end}'; }
gpus() { kubectl exec "$1" -- sh -c 'ls /dev | grep nvidia | sort | xargs'; }

while read -r pod node <&3; do
	seen=$(gpus "$pod")
	echo "$node: a pod with a GPU sees $seen"
	[[ $seen =~ ^nvidia[01]\ nvidiactl$ ]] || fail "$pod sees $seen"
	device=${seen% *}
	[[ $(kubectl exec "$pod" -- sh -c "head -c 16 /dev/$device | wc -c") == 16 ]] || fail "$pod cannot read $device"
	kubectl exec "$pod" -- sh -c 'mknod /tmp/other c 1 8' 2>/dev/null && fail "$pod can make a device"
	[[ $(kubectl exec "$pod" -- cat /usr/local/nvidia/lib64/libnvidia-ml.so.1) == "fake driver" ]] || fail "no driver in $pod"
	[[ $(kubectl exec "$pod" -- nvidia-smi) == "fake nvidia-smi" ]] || fail "no nvidia-smi in $pod"
done 3< <(pods with)
while read -r pod node <&3; do
	seen=$(gpus "$pod")
	[[ -z $seen ]] || fail "$pod, which asks for none, sees $seen"
done 3< <(pods without)

# A pod that requests one more GPU than there are stays pending.
sed 's/kind: DaemonSet/kind: Deployment/; s/name: with}/name: more}/; s/app: with}/app: more}/; /^---/,$d; s/gpu: 1/gpu: '$(($1 + 1))/ devices.yaml | kubectl apply -f - >/dev/null
kubectl wait --timeout=20s --for=jsonpath='{.status.conditions[0].reason}'=Unschedulable pod -l app=more ||
	fail "more GPUs than there are were given: $(kubectl get pods -o wide)"
echo "GPUs are as they should be"
