# shellcheck shell=bash
# Functions of scripts that run inside an elastic cluster.

# nodes prints the names of the nodes. A colon and the state follow the name of a node that is not
# ready, or takes no pods.
nodes() { kubectl get nodes --no-headers | awk '{print $1 ($2 == "Ready" ? "" : ":" $2)}' | sort | xargs; }
until_nodes() { until [[ $(nodes) == "$*" ]]; do sleep 0.2; done; }

# everyone_answers waits for the Deployment web, whose pods answer to every other one, at its
# address and by the Service, and prints the nodes of the pods.
everyone_answers() {
	local pods addresses pod address
	kubectl rollout status deployment/web --timeout=120s >/dev/null
	# Pods that end may not answer.
	until [[ $(kubectl get pods -l app=web --no-headers | wc -l) == "$(kubectl get deployment web -o jsonpath='{.spec.replicas}')" ]]; do sleep 0.2; done
	pods=$(kubectl get pods -l app=web -o jsonpath='{.items[*].metadata.name}')
	addresses=$(kubectl get pods -l app=web -o jsonpath='{.items[*].status.podIP}')
	for pod in $pods; do
		for address in $addresses web; do
			kubectl exec "$pod" -- wget -T 10 -qO- "http://$address:8080" >/dev/null
		done
	done
	kubectl get pods -l app=web -o jsonpath='{.items[*].spec.nodeName}' | xargs -n1 | sort -u | xargs
}

# pilots prints the numbers of the pilots' jobs, and records the names of their records in the cluster.
pilots() { squeue -h -n "berth-join-$SLURM_JOB_ID" -o %A | sort; }
records() { kubectl get configmaps -n kube-system -l slurm.berth.dev/pilot-of -o name | grep -v /berth-elastic$ || true; }

# until_pilots N waits until there are N jobs of pilots, and prints them.
until_pilots() {
	until [[ $(pilots | wc -l) == "$1" ]]; do sleep 0.2; done
	pilots | xargs
}

# events REASON... prints the messages of the loop's events.
events() {
	local reason
	for reason; do
		kubectl get events -A --field-selector "reason=$reason" -o jsonpath='{range .items[*]}{.message}{"\n"}{end}'
	done
}

# elastic_debris prints the state of the cluster and the queue after a failure.
elastic_debris() {
	echo 'the script failed; the cluster has:'
	kubectl get nodes,pods -A -o wide || true
	kubectl get events -A || true
	kubectl get configmaps -n kube-system -l slurm.berth.dev/pilot-of -o yaml || true
	squeue || true
}
