#!/bin/bash
# Runs pods that try to leave their containers, and prints what each was kept from and reached:
#   escape.sh BAIT OTHER-BAIT DENIED ALLOWED
set -uo pipefail
cd "$(dirname "$0")"

fail() { echo "FAILED: $*"; exit 1; }
ended() { kubectl wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=100s "pod/$1" >/dev/null || fail "$1: $(kubectl describe pod "$1" | tail -n 20)"; }

echo bait >"$1" && chmod 600 "$1" || exit 1
sleep 4711.2 &
trap 'kill %1; rm "$1"' EXIT
handle=$(/srv/ends/escape/escape handle "$1") || exit 1
baits="-own $1 -foreign $2 -denied $3 -allowed $4 -handle $handle"
sed "s|THE_BAITS|$baits|" escape.yaml >~/escape.yaml
kubectl apply -f - <~/escape.yaml >/dev/null && rm ~/escape.yaml || exit 1
for pod in plain slow network privileged; do
	ended "$pod"
	kubectl logs "$pod" | sed "s/^/$pod /"
done
for ((i = 0; i < 300; i++)); do
	linked=$(kubectl get pod linked -o jsonpath='{.status.containerStatuses[0].state}')
	[[ $linked != *CreateContainerConfigError* && $linked != *terminated* ]] || break
	sleep 0.1
done
echo "linked $linked"
