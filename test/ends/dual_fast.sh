#!/bin/bash
# IPv6 connections that the hosts make: to addresses and Services, as root and as
# another user, with the pods' addresses on both sides, and under network policies.
set -feuo pipefail # -f: addresses in brackets are no patterns
heard=$(mktemp)
trap 'rm "$heard"' EXIT
kubectl apply -f - <<'YAML' >/dev/null
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: web, image: "web:1"}
      - name: tools
        image: busybox:1.37
        command: [sh, -c, "nc -ll -p 9000 -e cat & exec sleep 1000"]
        securityContext: {runAsUser: 1000}
---
apiVersion: v1
kind: Service
metadata: {name: six}
spec:
  ipFamilyPolicy: SingleStack
  ipFamilies: [IPv6]
  selector: {app: web}
  ports:
  - {name: tcp, port: 8081}
  - {name: http, port: 80, targetPort: 8080}
---
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec:
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv6, IPv4]
  sessionAffinity: ClientIP
  selector: {app: web}
  ports: [{port: 8081}]
YAML
kubectl rollout status daemonset/web --timeout=60s >/dev/null
nodes=($(kubectl get nodes -o jsonpath='{.items[*].metadata.name}'))
of() { kubectl get pod -l app=web --field-selector "spec.nodeName=$1" -o jsonpath="{.items[0]$2}"; }
client=$(of "${nodes[0]}" .metadata.name) server=$(of "${nodes[1]}" .metadata.name)
own=$(of "${nodes[0]}" '.status.podIPs[1].ip') there=$(of "${nodes[1]}" '.status.podIPs[1].ip')
six=$(kubectl get service six -o jsonpath='{.spec.clusterIP}') sticky=$(kubectl get service sticky -o jsonpath='{.spec.clusterIP}')
for address in "$own" "$there" "$six" "$sticky"; do [[ $address == fd*:* ]]; done

. "${0%/*}/made.sh"
# asks N ADDRESS makes N requests from the client, and prints each server once.
asks() { kubectl exec "$client" -c web -- /web -ask "$(printf "$2,%.0s" $(seq "$1") | sed 's/,$//')" | sed 's/:[0-9]*$//' | sort -u; }
# is WANT CMD...
is() {
	local got
	got=$("${@:2}")
	[[ $got == "$1" ]] || { echo "${*:2}: want $1, got $got" >&2; exit 1; }
}
count() { "$@" | wc -l; }
fetches() { kubectl exec "$client" -c tools -- sh -c 'n=0; for i in $(seq '"$1"'); do wget -T 10 -qO /dev/null "'"$2"'" && n=$((n + 1)); done; echo $n'; }

# Both sides see the addresses of pods.
adds 20 is "$server [$own]" asks 20 "[$there]:8081"
adds 20 is 20 fetches 20 "http://[$there]:8080/"
echo connections to pods are made by the hosts
# Servers on all nodes, including the client's own. That 40 requests reach only two of
# three has a chance of one in three million.
adds 40 is 3 count asks 40 "[$six]:8081"
adds 20 is 20 fetches 20 "http://[$six]/"
adds 20 is 1 count asks 20 "[$sticky]:8081"
echo connections to Services are made by the hosts

# A policy ends connections that it forbids.
kubectl exec "$client" -c tools -- sh -c "mkfifo /tmp/in; (echo first; exec sleep 1000) >/tmp/in 2>/dev/null & nc '$there' 9000 </tmp/in" >"$heard" &
cut=$!
until grep -q first "$heard"; do sleep 0.1; done
kubectl apply -f - <<'YAML' >/dev/null
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: web}}}
YAML
wait $cut || true
test "$(kubectl exec "$client" -c tools -- sh -c "echo hello | nc -w 2 '$there' 9000 || true")" = "" || { echo a forbidden connection was made >&2; exit 1; }
kubectl delete networkpolicy closed >/dev/null
until [[ $(kubectl exec "$client" -c tools -- sh -c "echo hello | nc -w 2 '$there' 9000") == hello ]]; do sleep 0.1; done
known=
adds 5 is "$server [$own]" asks 5 "[$there]:8081"
echo the hosts make connections by IPv6
