#!/bin/bash
# Runs a server on every node, and queries all servers from each.
set -euo pipefail
kubectl apply -f "${0%/*}/web.yaml"
kubectl rollout status daemonset/web --timeout=30s
pods=$(kubectl get pods -l app=web -o jsonpath='{.items[*].metadata.name}')
addresses=$(kubectl get pods -l app=web -o jsonpath='{.items[*].status.podIP}')
test "$(wc -w <<<"$pods")" = "$(kubectl get nodes -o name | wc -l)"
for pod in $pods; do
	# shellcheck disable=SC2016,SC2086
	kubectl exec "$pod" -- sh -ec '
		trap "[ \$? = 0 ] || echo failed from \$(hostname) to \$address" EXIT
		echo packets of $(cat /sys/class/net/eth0/mtu)
		for address; do
			ping -c 1 -W 5 "$address" >/dev/null
			wget -T 5 -qO- "http://$address"
			test "$(wget -T 5 -qO- "http://$address/much" | wc -c)" = 5000000
			# Larger than any packet on the path.
			ping -c 1 -W 5 -s 20000 "$address" >/dev/null
		done
		address=web
		for i in 1 2 3 4 5 6; do wget -T 5 -qO- http://web; done' sh $addresses
	kubectl logs "$pod"
done
echo every pod reaches every pod
