#!/bin/bash
# Runs a pod with an image from a registry on each of three nodes, which take BYTES
# from each other:
#   pulled.sh BYTES
set -euo pipefail
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: pulled}
spec:
  selector: {matchLabels: {app: pulled}}
  template:
    metadata: {labels: {app: pulled}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: main, image: "login:5000/team/busybox:1.37", command: [sleep, "1000"]}
YAML
kubectl rollout status daemonset/pulled --timeout=120s
taken() { berth metrics | awk '/^berth_image_taken_bytes_total/ { sum += $NF } END { printf "%d\n", sum }'; }
deadline=$((SECONDS + 20))
until (($(taken) >= $1)); do
	((SECONDS < deadline)) || { echo "only $(taken) bytes taken from other nodes" >&2; exit 1; }
	sleep 0.2
done
[[ $(kubectl get pods -l app=pulled --field-selector=status.phase=Running -o name | wc -l) == 3 ]]
echo "three pods, and taken from other nodes: $(taken) bytes"
