#!/bin/bash
# Traffic policies and source addresses of Services, Services with external names and
# manual endpoints, and published ports on all nodes. web runs on n2 and n3 only.
set -euo pipefail
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
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
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
            - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [n2, n3]}]
      containers:
      - name: main
        image: busybox:1.37
        command:
        - sh
        - -c
        - |
          mkdir -p /www/cgi-bin
          printf '#!/bin/sh\necho; a=${REMOTE_ADDR##*:}; echo $NODE ${a%%]}\n' >/www/cgi-bin/who
          chmod +x /www/cgi-bin/who
          echo web on $NODE
          exec httpd -f -p 8080 -h /www
        env:
        - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: ask}
spec:
  selector: {matchLabels: {app: ask}}
  template:
    metadata: {labels: {app: ask}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: main, image: "busybox:1.37", command: [sleep, "1000"]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: spread}
spec:
  replicas: 6
  selector: {matchLabels: {app: spread}}
  template:
    metadata: {labels: {app: spread}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: spread}}
      containers:
      - {name: main, image: "busybox:1.37", command: [sleep, "1000"]}
---
apiVersion: v1
kind: Service
metadata: {name: any}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
---
apiVersion: v1
kind: Service
metadata: {name: direct}
spec:
  type: NodePort
  externalTrafficPolicy: Local
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30081}]
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{port: 8088, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: near}
spec:
  internalTrafficPolicy: Local
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec:
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 1}}
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: all}
spec:
  clusterIP: None
  selector: {app: web}
  ports: [{name: http, port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec:
  type: ExternalName
  externalName: any.default.svc.cluster.local
---
apiVersion: v1
kind: Service
metadata: {name: hand}
spec:
  ports: [{port: 80, targetPort: 8080}]
YAML
for what in daemonset/web daemonset/ask deployment/spread; do kubectl rollout status $what --timeout=40s; done

of() { kubectl get pods -l "app=$1" --field-selector "spec.nodeName=$2" -o "jsonpath={.items[0].$3}"; }
ask_n1=$(of ask n1 metadata.name) ask_n2=$(of ask n2 metadata.name) ask_n3=$(of ask n3 metadata.name)
# from POD SERVICE prints the node that answers, and the client's address as seen
# there.
from() { kubectl exec "$1" -- wget -T 2 -qO- "http://$2/cgi-bin/who"; }
# outside NODE PORT does the same from outside, through the node's host.
outside() { curl -sS --max-time 3 --noproxy '*' "http://$1:$2/cgi-bin/who"; }
refused() { ! "$@" 2>/dev/null || { echo "answered: $*" >&2 && return 1; }; }
# becomes WANT CMD... waits until the command prints that.
becomes() {
	local want=$1 said='' i
	shift
	for ((i = 0; i < 200; i++)); do
		said=$("$@" 2>&1) && [[ $said == $want ]] && return
		sleep 0.1
	done
	echo "want '$want' of: $*; it says: $said" >&2
	return 1
}

# From outside: through any node, or only through nodes with pods, which then see the
# client's address.
for node in n1 n2 n3; do
	becomes 'n[23] *' outside $node 8030
	becomes 'n[23] *' outside $node 8088
done
for node in n2 n3; do
	host=$(getent ahostsv4 n1 | awk '{ print $1; exit }')
	becomes "$node $host" outside $node 8031
done
refused outside n1 8031

# Only pods on the client's node.
becomes 'n2 *' from "$ask_n2" near
for i in 1 2 3 4 5 6; do
	[[ $(from "$ask_n2" near) == n2\ * && $(from "$ask_n3" near) == n3\ * ]]
done
refused from "$ask_n1" near

# Session affinity: a client reaches the same pod until it was idle for a second.
stay() { kubectl exec "$ask_n1" -- sh -c 'for i in 1 2 3 4 5 6 7 8; do wget -T 2 -qO- http://sticky/cgi-bin/who; done' | cut -d' ' -f1 | sort -u | xargs; }
first=$(stay)
[[ $first == n[23] ]]
elsewhere() {
	local now
	now=$(stay)
	[[ $now == n[23] ]] || { echo "not one pod: $now"; return; }
	[[ $now != "$first" ]] && echo moved || sleep 1.2
}
becomes moved elsewhere

# Names: of ports, of another Service, and of a Service whose endpoints are
# written by hand.
kubectl exec "$ask_n1" -- nslookup -type=srv _http._tcp.all.default.svc.cluster.local | grep -c '8080 .*\.all\.default\.svc\.cluster\.local' | grep -qx 2
becomes 'n[23] *' from "$ask_n3" alias
by_hand() {
	kubectl apply -f - <<YAML >/dev/null
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hand-1, labels: {kubernetes.io/service-name: hand}}
addressType: IPv4
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: [$(of web "$1" status.podIP)]}]
YAML
}
for node in n2 n3 n2; do
	by_hand $node
	for pod in "$ask_n1" "$ask_n2" "$ask_n3"; do becomes "$node *" from "$pod" hand; done
done

# Into pods of all nodes.
date >"$scratch/there"
for pod in "$ask_n1" "$ask_n2" "$ask_n3"; do
	kubectl cp "$scratch/there" "$pod:/tmp/there"
	kubectl cp "$pod:/tmp/there" "$scratch/back" >/dev/null
	cmp "$scratch/there" "$scratch/back"
done
for node in n2 n3; do test "$(kubectl logs "$(of web $node metadata.name)")" = "web on $node"; done
test "$(kubectl logs -l app=web | sort | xargs)" = 'web on n2 web on n3'

# Two pods of six on each of three nodes.
test "$(kubectl get pods -l app=spread -o jsonpath='{range .items[*]}{.spec.nodeName}{"\n"}{end}' | sort | uniq -c | xargs)" = '2 n1 2 n2 2 n3'
echo traffic goes where it may
