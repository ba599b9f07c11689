#!/bin/bash
# Runs a server on every node, and has each ask all.
set -euo pipefail
kubectl apply -f - <<'YAML'
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: web
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: busybox:1.37
        command: ["sh", "-c", "hostname >/tmp/index.html; exec httpd -f -p 80 -h /tmp"]
---
apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  selector: {app: web}
  ports: [{port: 80}]
YAML
kubectl rollout status daemonset/web --timeout=30s
pods=$(kubectl get pods -l app=web -o jsonpath='{.items[*].metadata.name}')
addresses=$(kubectl get pods -l app=web -o jsonpath='{.items[*].status.podIP}')
test "$(wc -w <<<"$pods")" = 3
for pod in $pods; do
	for address in $addresses; do
		kubectl exec "$pod" -- ping -c 1 -W 5 "$address" >/dev/null
		kubectl exec "$pod" -- wget -T 5 -qO- "http://$address"
		# Larger than any packet on the way.
		kubectl exec "$pod" -- ping -c 1 -W 5 -s 20000 "$address" >/dev/null
	done
	kubectl exec "$pod" -- sh -c 'for i in 1 2 3 4 5 6; do wget -T 5 -qO- http://web || exit 1; done'
	kubectl logs "$pod"
done
echo every pod reaches every pod
