#!/bin/sh
# A script that uses the cluster beside it; its exit code is that of berth run:
#
#   berth run --image busybox.tar -- examples/script.sh
set -e
kubectl create job greet --image=busybox:1.37 -- echo "Hello from a script's Job"
kubectl wait --for=condition=complete --timeout=60s job/greet >&2
kubectl logs job/greet
