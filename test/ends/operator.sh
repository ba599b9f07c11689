#!/bin/bash
# Installs an operator from its Helm chart, and checks that it works.
set -uo pipefail
chart=$1

fail() { echo "FAILED: $*"; exit 1; }
greeted() { kubectl wait --timeout=30s --for=jsonpath='{.status.greeted}'="$1" greeting/first; }
text() { kubectl get configmap first -o jsonpath='{.data.greeting}'; }
greet() {
	kubectl apply -f - <<-END
		apiVersion: test.berth.dev/v1
		kind: Greeting
		metadata: {name: first}
		spec: {name: "$1"}
	END
}

helm install op "$chart" --wait --timeout 90s || fail "helm install: $(kubectl get pods,events)"
kubectl explain greeting.spec.name >/dev/null || fail "the new kind is not explained"
greet ships && greeted "hello ships" || fail "no greeting: $(kubectl logs -l app=op)"
[[ $(text) == "hello ships" ]] || fail "the ConfigMap says $(text)"
[[ $(greet '' 2>&1) == *"should be at least 1 chars long"* ]] || fail "what the schema forbids is accepted"

# The operator restores a deleted object; another replica takes over.
kubectl delete configmap first && kubectl wait --timeout=20s --for=create configmap/first || fail "a deleted ConfigMap does not come back"
leader=$(kubectl get lease greetings.test.berth.dev -o jsonpath='{.spec.holderIdentity}')
kubectl delete pod "${leader%%_*}" && greet people && greeted "hello people" || fail "no other replica takes over"

helm upgrade op "$chart" --set replicas=1 --wait --timeout 60s && [[ $(kubectl get deployment op -o jsonpath='{.spec.replicas}') == 1 ]] || fail "helm upgrade"
# The garbage collector checks for new resource types every 30 s.
kubectl delete greeting first && kubectl wait --timeout=60s --for=delete configmap/first || fail "the ConfigMap outlives its owner"
helm uninstall op --wait && [[ -z $(helm list -q) ]] || fail "helm uninstall"
echo "the operator works"
