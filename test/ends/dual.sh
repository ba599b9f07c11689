#!/bin/bash
# What pods reach by IPv6 (each other on every node, Services of all kinds, the
# outside) and what they do not.
set -feuo pipefail # -f: addresses in brackets are no patterns
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
      - name: web
        image: web:1
        ports: [{containerPort: 8081, hostPort: 9081}]
      - name: tools
        image: busybox:1.37
        command: ["sh", "-c", "dd if=/dev/urandom of=/tmp/large bs=64k count=300 2>/dev/null; exec httpd -f -p '[::]:80' -h /tmp"]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: on-node}
spec:
  selector: {matchLabels: {app: on-node}}
  template:
    metadata: {labels: {app: on-node}}
    spec:
      terminationGracePeriodSeconds: 0
      hostNetwork: true
      containers:
      - {name: web, image: "web:1", args: [-http, "", -tcp, ":7081", -udp, ""]}
---
apiVersion: v1
kind: Service
metadata: {name: both}
spec:
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  selector: {app: web}
  ports:
  - {name: tcp, port: 8081, nodePort: 30081}
  - {name: udp, port: 8082, nodePort: 30082, protocol: UDP}
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
  - {name: udp, port: 8082, protocol: UDP}
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports: [{port: 8088, targetPort: 8081}]
---
apiVersion: v1
kind: Service
metadata: {name: all}
spec:
  clusterIP: None
  ipFamilyPolicy: PreferDualStack
  selector: {app: web}
  ports: [{port: 8081}]
YAML
kubectl rollout status daemonset/web --timeout=40s
kubectl rollout status daemonset/on-node --timeout=40s

# is WANT GOT
is() { [[ $1 == "$2" ]] || { echo "want $1, got $2" >&2; exit 1; }; }
list() { kubectl get "$1" -l app="$2" -o jsonpath="{.items[*]$3}"; }
pods=$(list pods web .metadata.name)
hosted=$(list pods on-node .metadata.name)
is 3 "$(wc -w <<<"$pods")"
declare -A address
for pod in $pods $hosted; do
	address[$pod]=$(kubectl get pod "$pod" -o jsonpath='{.status.podIPs[1].ip}')
	[[ ${address[$pod]} == fd*:* ]]
done
nodes=$(kubectl get nodes -o jsonpath='{range .items[*]}{.status.addresses[1].address}{"\n"}{end}')
is 3 "$(grep -c '^fd' <<<"$nodes")"
# It has the addresses of all nodes, IPv4 first.
deadline=$((SECONDS + 30))
until outer=$(kubectl get service balanced -o jsonpath='{range .status.loadBalancer.ingress[*]}{.ip}{"\n"}{end}' | grep -m 1 :); do
	((SECONDS < deadline)) || { kubectl get service balanced -o yaml; exit 1; }
done
cluster_ips=$(kubectl get service both six -o jsonpath='{.items[0].spec.clusterIPs[1]} {.items[1].spec.clusterIP}')
is 2 "$(grep -o 'fd[0-9a-f:]*' <<<"$cluster_ips" | wc -l)"

# ask POD NETWORK ADDRESS... prints the answers of the servers there. One call takes
# many addresses, because kubectl exec takes most of the time.
ask() { kubectl exec "$1" -c web -- /web -ask "$(IFS=,; echo "${*:3}")" -over "$2"; }
# at PORT ADDRESS...
at() { printf "[%s]:$1\n" "${@:2}"; }
their=() sums=() # address and checksum of each pod
for pod in $pods; do
	their+=("${address[$pod]}")
	sums+=("$(kubectl exec "$pod" -c tools -- sh -c 'until wget -qO /dev/null "http://[::1]/large"; do sleep 0.1; done; md5sum /tmp/large' | cut -d' ' -f1)")
done

for pod in $pods; do
	# The other pods see the client's own address.
	seen=$(printf "%s [${address[$pod]}]\n" $pods)
	is "$seen" "$(ask "$pod" tcp $(at 8081 "${their[@]}") | sed 's/:[0-9]*$//')"
	is "$seen" "$(ask "$pod" udp $(at 8082 "${their[@]}") | sed 's/:[0-9]*$//')"
	# Also with data larger than any packet on the path.
	is "${sums[*]}" "$(kubectl exec "$pod" -c tools -- sh -ec 'for there; do
		ping -c 1 -W 5 "$there" >/dev/null
		ping -c 1 -W 5 -s 20000 "$there" >/dev/null
		wget -T 20 -qO- "http://[$there]/large" | md5sum
	done' sh "${their[@]}" | cut -d' ' -f1 | xargs)"
	ask "$pod" tcp $(at 30081 $nodes) $(at 9081 $nodes) $(at 7081 $nodes) $(at 8081 $cluster_ips) "[$outer]:8088" >/dev/null
	ask "$pod" udp $(at 30082 $nodes) $(at 8082 $cluster_ips) six:8082 >/dev/null
	# By name: of a Service with only IPv6, and of all with both families.
	is 3 "$(ask "$pod" tcp $(printf 'six:8081 %.0s' {1..25}) | cut -d' ' -f1 | sort -u | wc -l)"
	name() { kubectl exec "$pod" -c tools -- nslookup -type="$1" "$2.default.svc.cluster.local" | sed -n 's/^Address: //p' | sort; }
	is "${cluster_ips#* }" "$(name aaaa six)"
	is "" "$(name a six)"
	is "$(printf '%s\n' "${their[@]}" | sort)" "$(name aaaa all)"
	# The outside.
	is there-and-back "$(kubectl exec "$pod" -c web -- /web -ask "[2001:db8:ffff::10]:7" -say there-and-back)"
	is there-and-back "$(kubectl exec "$pod" -c web -- /web -ask "[2001:db8:ffff::10]:7" -over udp -say there-and-back)"
	kubectl exec "$pod" -c tools -- nslookup -type=aaaa www.outside.test | grep -q 2001:db8:ffff::10
	kubectl exec "$pod" -c tools -- wget -T 5 -qO- 'http://[2001:db8:ffff::10]/' | grep -q outside
done
# A node reaches the pods of all.
for pod in $hosted; do
	is "$(xargs <<<"$pods")" "$(ask "$pod" tcp $(at 8081 "${their[@]}") | cut -d' ' -f1 | xargs)"
	is "$(xargs <<<"$pods")" "$(ask "$pod" udp $(at 8082 "${their[@]}") | cut -d' ' -f1 | xargs)"
	is there-and-back "$(kubectl exec "$pod" -c web -- /web -ask "[2001:db8:ffff::10]:7" -say there-and-back)"
done

# Listeners on the host's loopback are unreachable.
busybox httpd -f -p '[::1]:18081' -h / &
trap 'kill %%' EXIT
until busybox wget -qO /dev/null 'http://[::1]:18081/etc/hostname'; do sleep 0.1; done
own=$(ip -6 -o addr show dev eth0 scope global | sed -n 's|.* inet6 \([^/]*\)/.*|\1|p' | head -n 1)
for pod in $pods $hosted; do
	for there in ::1 ::ffff:127.0.0.1 :: 64:ff9b::127.0.0.1 "$own"; do
		! ask "$pod" tcp "[$there]:18081" 2>/dev/null || { echo "$pod reaches the host's loopback by $there" >&2; exit 1; }
	done
done
echo everything reaches everything by IPv6
