#!/bin/bash
# Runs pods on three nodes. One node is lost meanwhile. Waits until its pods run on
# the others; with "back", then also until one runs on that node again.
#   move.sh NODE [back]
set -euo pipefail
node=$1
kubectl apply -f - <<'YAML'
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 3
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: ScheduleAnyway
        labelSelector: {matchLabels: {app: db}}
      containers:
      - {name: main, image: "busybox:1.37", command: [sleep, "1000"]}
YAML
placed() { kubectl get pods -l app=db -o jsonpath='{range .items[*]}{.spec.nodeName}={.status.phase} {end}'; }
kubectl rollout status statefulset/db --timeout=30s
[[ $(placed) == *$node=Running* ]]
echo "pods on $(placed)"
until now=$(placed) && [[ $now != *"$node="* && $(grep -o Running <<<"$now" | wc -l) == 3 ]]; do sleep 0.2; done
echo "moved to $now"
[[ ${2:-} == back ]] || exit 0
cat <<YAML | kubectl apply -f -
apiVersion: v1
kind: Pod
metadata: {name: again}
spec:
  restartPolicy: Never
  nodeSelector: {kubernetes.io/hostname: $node}
  containers:
  - {name: main, image: "busybox:1.37", command: [echo, here again]}
YAML
kubectl wait pod/again --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s
kubectl logs again
