#!/bin/bash
# An ingress controller, reached from outside the cluster through the hosts of all
# nodes: two host names and paths, and TLS from a Secret, all of them changed later.
set -euo pipefail
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
cd "$scratch"
# certificate FILE: makes a new certificate for shop.example.
certificate() {
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=shop.example \
		-addext subjectAltName=DNS:shop.example -keyout "$1.key" -out "$1.crt" 2>/dev/null
}
# fetch NODE URL [OPTION...] prints the response to the URL through a node's host.
fetch() {
	local node=$1 url=$2
	shift 2
	curl -sS --max-time 5 --noproxy '*' --connect-to "::$node:" "$@" "$url"
}
# answers WANT FETCH... waits for that response.
answers() {
	local want=$1 said='' i
	shift
	for ((i = 0; i < 300; i++)); do
		said=$("$@" 2>&1) && [[ $said == "$want" ]] && return
		sleep 0.1
	done
	echo "want '$want' of: $*; it says: $said" >&2
	return 1
}
certificate first
kubectl create secret tls shop-tls --cert=first.crt --key=first.key
kubectl -n traefik rollout status daemonset/traefik --timeout=60s
for node in n1 n2 n3; do
	answers 'this is the shop' fetch $node http://shop.example:8080/
	answers 'this is the shop' fetch $node https://shop.example:8443/ --cacert first.crt
	answers 'these are the docs' fetch $node http://shop.example:8080/help/
	answers 'these are the docs' fetch $node https://shop.example:8443/help/ --cacert first.crt
	answers 'these are the docs' fetch $node http://docs.example:8080/
	answers '404 page not found' fetch $node http://other.example:8080/
done
# The controller publishes the addresses of the nodes in the Ingress's status.
addresses() { kubectl get "$@" -o jsonpath='{.items[*].status.loadBalancer.ingress[*].ip}'; }
answers "$(addresses service -n traefik)" addresses ingress
test "$(addresses ingress | wc -w)" = 3

# Other backends, another host, another certificate.
kubectl patch ingress site --type=json -p '[
	{"op": "replace", "path": "/spec/rules/1/http/paths/0/backend/service/name", "value": "shop"},
	{"op": "replace", "path": "/spec/rules/1/host", "value": "other.example"}]'
certificate second
kubectl create secret tls shop-tls --cert=second.crt --key=second.key --dry-run=client -o yaml | kubectl apply -f - 2>/dev/null
for node in n1 n2 n3; do
	answers 'this is the shop' fetch $node http://other.example:8080/
	answers '404 page not found' fetch $node http://docs.example:8080/
	answers 'this is the shop' fetch $node https://shop.example:8443/ --cacert second.crt
done
kubectl delete -f - <<'YAML' >/dev/null
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: site}
YAML
for node in n1 n2 n3; do
	answers '404 page not found' fetch $node http://shop.example:8080/
done
echo the ingress follows
