#!/bin/bash
# Kubernetes features across nodes: every kind of Service, node ports, port-forward,
# and claims that stay with their node.
set -euo pipefail
forwarded=$(mktemp)
trap 'rm "$forwarded"' EXIT
kubectl apply -f "${0%/*}/web.yaml" >/dev/null
kubectl apply -f - <<'YAML' >/dev/null
apiVersion: v1
kind: Service
metadata: {name: any}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, nodePort: 30080}]
---
apiVersion: v1
kind: Service
metadata: {name: same}
spec:
  selector: {app: web}
  sessionAffinity: ClientIP
  ports: [{port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{port: 8088, targetPort: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: all}
spec:
  clusterIP: None
  selector: {app: web}
  ports: [{port: 80}]
---
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
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: db}}}
      containers:
      - name: main
        image: busybox:1.37
        command: [sleep, "1000"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 1Mi}}
YAML
kubectl rollout status daemonset/web --timeout=40s
kubectl rollout status statefulset/db --timeout=40s
pods=$(kubectl get pods -l app=web -o jsonpath='{.items[*].metadata.name}')
nodes=$(kubectl get nodes -o jsonpath='{.items[*].metadata.name}')
address() { kubectl get node "$1" -o jsonpath='{.status.addresses[?(@.type=="InternalIP")].address}'; }
until outer=$(kubectl get service balanced -o jsonpath='{.status.loadBalancer.ingress[0].ip}') && [[ -n $outer ]]; do sleep 0.1; done
# fetch POD URL... prints the response to each URL in the pod.
fetch() {
	local pod=$1
	shift
	kubectl exec "$pod" -- sh -c 'for url in "$@"; do wget -T 5 -qO- "$url" || { echo "$url does not answer" >&2; exit 1; }; done' sh "$@"
}
# seen N succeeds if standard input has N different lines.
seen() { test "$(sort -u | tee /dev/stderr | wc -l)" = "$1"; }

# A node port leads to any pod, and the pod's host port to the pod on that node.
any=() own=()
for node in $nodes; do
	address=$(address "$node")
	any+=("http://$address:30080") own+=("http://$address:8081")
done
for pod in $pods; do
	fetch "$pod" "${any[@]}" >/dev/null
	test "$(fetch "$pod" "${own[@]}" | xargs)" = "$nodes"
	fetch "$pod" http://any http://any http://any http://any http://any http://any http://any http://any http://any http://any \
		http://any http://any http://any http://any http://any http://any http://any http://any http://any http://any | seen 3
	fetch "$pod" http://same http://same http://same http://same http://same http://same | seen 1
	fetch "$pod" "http://$outer:8088" >/dev/null
	kubectl exec "$pod" -- nslookup all.default.svc.cluster.local | grep -c '^Address: ' | seen 1
	: >"$forwarded" # or the port of the pod before is taken for this one's
	kubectl port-forward "$pod" :80 >"$forwarded" &
	until port=$(sed -n 's/.*127.0.0.1:\([0-9]*\) .*/\1/p' "$forwarded") && [[ -n $port ]]; do sleep 0.1; done
	exec 3<>"/dev/tcp/127.0.0.1/$port"
	printf 'GET / HTTP/1.0\r\n\r\n' >&3
	grep -q 200 <&3
	exec 3>&-
	kill %%
	wait %% 2>/dev/null || true
done

# A replaced pod runs on the same node, where its claim is.
placed() { kubectl get pods -l app=db -o jsonpath='{range .items[*]}{.metadata.name}={.spec.nodeName} {end}'; }
before=$(placed)
for i in 0 1 2; do kubectl exec "db-$i" -- sh -c "echo $i >/data/mine"; done
kubectl delete pods -l app=db --wait=true >/dev/null
kubectl rollout status statefulset/db --timeout=40s
for i in 0 1 2; do test "$(kubectl exec "db-$i" -- cat /data/mine)" = "$i"; done
test "$(placed)" = "$before"
echo everything reaches everything
