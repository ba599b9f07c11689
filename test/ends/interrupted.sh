# Runs a workload on the cluster of berth up, and one with its own cluster, each until
# Ctrl-C.
here=$1 image=$2
trap : INT
berth up --image "$image" || exit
berth run -f "$here/loop.yaml"
echo "used $?"
berth kubectl get pods 2>&1 | grep 'No resources' || exit
berth down || exit
berth run -f "$here/loop.yaml" --image "$image"
echo "own $?"
