#!/bin/bash
# Network policies: which pods reach each other, on the same and on other nodes, by
# both IP families, through a Service and its name, before, with and after policies.
# A pod is isolated before its first program runs.
set -euo pipefail
daemons() { # NAME: a server and a client on each node
	cat <<YAML
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: $1}
spec:
  selector: {matchLabels: {name: $1}}
  template:
    metadata: {labels: {name: $1, app: $1}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: web
        image: web:1
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
      - {name: tools, image: "busybox:1.37", command: [sleep, "1000"]}
---
YAML
}
{
	daemons web
	daemons client
	cat <<'YAML'
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  ipFamilyPolicy: PreferDualStack
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
YAML
} | kubectl apply -f - >/dev/null
kubectl rollout status daemonset/web --timeout=60s
kubectl rollout status daemonset/client --timeout=60s

list() { kubectl get pods -l name="$1" -o jsonpath='{.items[*].metadata.name}'; }
web=$(list web) clients=$(list client)
[[ $(wc -w <<<"$web $clients") == 6 ]]
declare -A four six # the pods' servers
for pod in $web $clients; do
	read -r a b <<<"$(kubectl get pod "$pod" -o jsonpath='{.status.podIPs[*].ip}')"
	four[$pod]=$a:8080 six[$pod]=[$b]:8080
done
servers=$(for pod in $web; do echo "${four[$pod]} ${six[$pod]}"; done)

# reached POD SERVER... prints the servers that answer the pod by TCP.
reached() {
	local pod=$1
	shift
	kubectl exec "$pod" -c tools -- sh -c 'for s; do wget -qO /dev/null -T 2 "http://$s/" 2>/dev/null && echo "$s" & done; wait' sh "$@" | sort | xargs
}
# reaches PODS WANTED SERVER...: each of the pods reaches the WANTED servers and no
# others. It polls, because a change takes effect after a moment.
reaches() {
	local pods=$1 wanted pod got deadline=$((SECONDS + 20))
	wanted=$(tr ' ' '\n' <<<"$2" | sort | xargs)
	shift 2
	for pod in $pods; do
		until got=$(reached "$pod" "$@"); [[ $got == "$wanted" ]]; do
			((SECONDS < deadline)) || { echo "$pod reaches '$got', not '$wanted'" >&2; exit 1; }
		done
	done
}
# datagram POD SERVER succeeds if a datagram is answered.
datagram() { kubectl exec "$1" -c web -- /web -over udp -ask "${2%:8080}:8082" >/dev/null 2>&1; }
fails() { ! "$@" || { echo "$* does not fail" >&2; exit 1; }; }
policy() { kubectl apply -f - >/dev/null; }

reaches "$clients" "$servers web:80" $servers web:80
for pod in $clients; do datagram "$pod" "${four[${web%% *}]}"; done

# No pod reaches web, not through its Service either. web still reaches others, and
# the kubelet's probes reach web.
policy <<'YAML'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: web}}}
YAML
reaches "$clients" "" $servers web:80
fails datagram "${clients%% *}" "${four[${web##* }]}"
for pod in $clients; do reaches "$web" "${four[$pod]} ${six[$pod]}" "${four[$pod]}" "${six[$pod]}"; done

# Policies are additive: this one permits clients to use the named port. A pod always
# reaches itself.
policy <<'YAML'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: open}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: http}]}]
YAML
reaches "$clients" "$servers web:80" $servers web:80
fails datagram "${clients%% *}" "${four[${web##* }]}"
for pod in $web; do reaches "$pod" "${four[$pod]} ${six[$pod]}" $servers; done

# Changed labels apply at once, to open connections, too: no data arrives from a pod
# that is no longer permitted. A client that has lost its connection makes another.
listener=${web%% *} speaker=${clients##* }
# One of them may have ended: the script has its own exit code all the same.
trap 'kill $(jobs -p) || true' EXIT
kubectl exec "$listener" -c tools -- nc -ll -p 9000 -e tee -a /tmp/heard &
policy <<'YAML'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: talk}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 9000}]}]
YAML
heard() { kubectl exec "$listener" -c tools -- sh -c 'wc -c </tmp/heard'; }
kubectl exec "$speaker" -c tools -- sh -c "while sleep 0.1; do while echo x; do sleep 0.1; done | nc ${four[$listener]%:8080} 9000; done" >/dev/null 2>&1 &
for want in "grows" "stands still" "grows"; do
	deadline=$((SECONDS + 30))
	until before=$(heard) && sleep 2 && after=$(heard) && if [[ $want == grows ]]; then ((after > before)); else ((after == before)); fi; do
		((SECONDS < deadline)) || { echo "what is heard does not: $want" >&2; exit 1; }
	done
	if [[ $want == grows ]]; then label=unknown; else label=client; fi
	kubectl label pod "$speaker" app="$label" --overwrite >/dev/null
done
kubectl label pod "$speaker" app=client --overwrite >/dev/null

# Clients reach only DNS, by the label that its pods have in other clusters.
policy <<'YAML'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: names-alone}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
      podSelector: {matchLabels: {k8s-app: kube-dns}}
    ports: [{port: 53, protocol: UDP}, {port: 53}]
YAML
reaches "$clients" "" $servers web:80
can_connect() { kubectl exec "$1" -c tools -- timeout 10 nc -w 3 "$2" "$3" </dev/null >/dev/null 2>&1; }
for pod in $clients; do
	kubectl exec "$pod" -c tools -- nslookup web.default.svc.cluster.local >/dev/null
	fails can_connect "$pod" kubernetes 443
done
for pod in $web; do can_connect "$pod" kubernetes 443; done

# Pods whose first action is forbidden, and pods whose first action is permitted.
hasty() { # NAME APP SCRIPT
	cat <<YAML
apiVersion: batch/v1
kind: Job
metadata: {name: $1}
spec:
  completions: 9
  parallelism: 9
  backoffLimit: 0
  template:
    metadata: {labels: {app: $2}}
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: "busybox:1.37", command: [sh, -c, "$3"]}
---
YAML
}
open=${four[${clients%% *}]}
{
	hasty forbidden client "! wget -qO /dev/null -T 1 http://$open/ && nslookup web.default.svc.cluster.local >/dev/null"
	hasty free anybody "wget -qO /dev/null -T 1 http://$open/"
} | policy
kubectl wait --for=condition=Complete job/forbidden job/free --timeout=60s

kubectl delete networkpolicies --all >/dev/null
reaches "$clients" "$servers web:80" $servers web:80
for pod in $clients; do datagram "$pod" "${four[${web%% *}]}"; done
echo policies hold everywhere
