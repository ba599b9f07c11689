#!/bin/sh
# Runs an MPI program over three pods:
#
#   srun -N3 --mem=2G berth run --image mpi.tar -- examples/mpi/mpi.sh
set -eu
cd "$(dirname "$0")"

# Keys only for this run.
keys=$(mktemp -d)
trap 'rm -rf "$keys"' EXIT
for key in user host; do ssh-keygen -q -t ed25519 -N '' -C '' -f "$keys/$key"; done
echo "mpi $(cat "$keys/host.pub")" >"$keys/known_hosts"
kubectl create secret generic mpi --from-file="$keys/user" --from-file="$keys/host" \
	--from-file=authorized_keys="$keys/user.pub" --from-file="$keys/known_hosts"

kubectl apply -f workers.yaml
kubectl rollout status --timeout=120s statefulset/mpi
kubectl apply -f job.yaml
until kubectl logs --follow job/mpi 2>/dev/null; do sleep 0.2; done
kubectl wait --for=condition=complete --timeout=30s job/mpi
