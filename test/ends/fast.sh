#!/bin/bash
# Connections between pods on different nodes that their hosts make: to addresses and
# Services, as root and as another user, while net roles die, and with annotations
# and network policies.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
kubectl apply -f "${0%/*}/web.yaml" >/dev/null
kubectl create namespace plain >/dev/null
kubectl annotate namespace plain berth.dev/fast-path=off >/dev/null
nodes=($(kubectl get nodes -o jsonpath='{.items[*].metadata.name}'))
pod() { # NAMESPACE NAME NODE USER ANNOTATIONS
	kubectl apply -n "$1" -f - <<YAML >/dev/null
apiVersion: v1
kind: Pod
metadata: {name: "$2", labels: {name: "$2"}, annotations: {$5}}
spec:
  nodeName: $3
  terminationGracePeriodSeconds: 0
  securityContext: {runAsUser: $4}
  containers:
  - name: main
    image: busybox:1.37
    command: [sh, -c, "nc -ll -p 9000 -e cat & exec sleep 1000"]
YAML
}
pod default root "${nodes[0]}" 0 ""
pod default user "${nodes[0]}" 1000 ""
pod default kept "${nodes[0]}" 0 'berth.dev/fast-path: "off"'
pod plain root "${nodes[0]}" 0 ""
pod default echo "${nodes[1]}" 1000 ""
kubectl expose pod echo --port=9000 >/dev/null
kubectl rollout status daemonset/web --timeout=60s >/dev/null
kubectl wait --for=condition=Ready pod -A --all --timeout=60s >/dev/null
address() { kubectl get pod "$1" -o jsonpath='{.status.podIP}'; }
web=$(kubectl get pod -l app=web --field-selector "spec.nodeName=${nodes[1]}" -o jsonpath='{.items[0].status.podIP}')

. "${0%/*}/made.sh"
# fetch NAMESPACE POD N URL fetches the URL N times, and prints the number of
# failures.
fetch() {
	kubectl exec -n "$1" "$2" -- sh -c 'n=0; for i in $(seq '"$3"'); do wget -T 10 -qO- '"$4"' >/dev/null || n=$((n + 1)); done; echo $n'
}
none_fails() { test "$(fetch "$@")" = 0; }

adds 20 none_fails default root 20 "http://$web"
adds 20 none_fails default user 20 "http://$web"
echo connections to pods are made by the hosts
through_service() { test "$(kubectl exec "$1" -- sh -c 'for i in 1 2 3 4 5; do echo hello | nc -w 5 echo 9000; done' | sort | uniq -c | xargs)" = "5 hello"; }
adds 5 through_service root
adds 5 through_service user
echo connections to Services are made by the hosts
# The outside is every address that does not belong to a pod. Its server is reached by
# name, and under a policy.
before=$(settled 'connected to the outside')
for from in root user; do
	test "$(kubectl exec "$from" -- sh -c 'for i in 1 2 3 4 5; do echo hello | nc -w 5 www.outside.test 7; done' | sort | uniq -c | xargs)" = "5 hello"
done
test "$(kubectl exec kept -- sh -c 'echo hello | nc -w 5 www.outside.test 7')" = hello
now=$(settled 'connected to the outside')
((now - before == 10)) || { echo "$((now - before)) connections to the outside" >&2; berth metrics | grep '^berth_fastpath' >&2; exit 1; }
echo connections to the outside are made by the hosts
adds 0 none_fails default kept 20 "http://$web"
adds 0 none_fails plain root 20 "http://$web"
echo annotations keep pods and namespaces to the overlay

kubectl exec root -- sh -c "(echo first; sleep 8; echo last) | nc echo 9000" >"$dir/held" &
held=$!
fetch default root 700 "http://$web" >"$dir/root" &
roots=$!
fetch default user 700 "http://$web" >"$dir/user" &
users=$!
echo connections are being made
wait $roots $users
echo "$(cat "$dir/root") and $(cat "$dir/user") connections failed"
wait $held
test "$(xargs <"$dir/held")" = "first last"
known=
echo the connection that was there goes on

# A policy ends open connections that it forbids and prevents new ones, until it is
# removed.
kubectl exec root -- sh -c 'mkfifo /tmp/in; (echo first; exec sleep 1000) >/tmp/in 2>/dev/null & nc echo 9000 </tmp/in' >"$dir/cut" &
cut=$!
until grep -q first "$dir/cut"; do sleep 0.1; done
kubectl apply -f - <<'YAML' >/dev/null
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: some}
spec:
  podSelector: {matchLabels: {name: echo}}
  ingress: [{from: [{podSelector: {matchLabels: {name: user}}}]}]
YAML
wait $cut || true
echo a connection that is forbidden ends
test "$(kubectl exec root -- sh -c 'echo hello | nc -w 2 echo 9000 || true')" = "" || { echo a forbidden connection was made >&2; exit 1; }
adds 5 through_service user
kubectl delete networkpolicy some >/dev/null
known=
until [[ $(kubectl exec root -- sh -c 'echo hello | nc -w 2 echo 9000') == hello ]]; do sleep 0.1; done
adds 5 through_service root
echo policies hold for connections of the hosts
