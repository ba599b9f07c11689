#!/bin/bash
# Both processes that make connections for pods are killed. berth replaces the pods
# that cannot connect any more, and adds an event to their owner.
set -euo pipefail
kubectl apply -f "${0%/*}/web.yaml" >/dev/null
kubectl rollout status daemonset/web --timeout=60s >/dev/null
nodes=($(kubectl get nodes -o jsonpath='{.items[*].metadata.name}'))
on() { kubectl get pod -l app=web --field-selector "spec.nodeName=$1" -o jsonpath="{.items[0].$2}"; }
before=$(on "${nodes[1]}" metadata.name) stays=$(on "${nodes[0]}" metadata.name)
echo pods are there
until kubectl get events -o jsonpath='{range .items[?(@.reason=="FastPathLost")]}{.involvedObject.name}{"\n"}{end}' | grep -qx "$before"; do sleep 0.2; done
until now=$(on "${nodes[1]}" metadata.name 2>/dev/null) && [[ -n $now && $now != "$before" ]]; do sleep 0.2; done
kubectl rollout status daemonset/web --timeout=60s >/dev/null
kubectl wait --for=condition=Ready "pod/$now" --timeout=60s >/dev/null
test "$(kubectl exec "$stays" -- wget -T 10 -qO- "http://$(on "${nodes[1]}" status.podIP)")" = "${nodes[1]}"
test "$(kubectl exec "$now" -- wget -T 10 -qO- "http://$(on "${nodes[0]}" status.podIP)")" = "${nodes[0]}"
test "$(on "${nodes[0]}" metadata.name)" = "$stays"
echo pods were made anew
