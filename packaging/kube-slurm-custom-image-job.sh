#!/bin/bash
# Runs KUBE_SCRIPT with bash in KUBE_IMAGE. The home directory, KUBE_DATA_VOLUME (if set) and
# /apps (if it exists) have the same paths in the pod as on the host.
. "$(dirname "$(readlink -f "$0")")/kube-slurm.sh"
folders=("$HOME=$HOME")
[[ ! -d /apps ]] || folders+=(/apps=/apps)
script=$(quoted "${KUBE_SCRIPT:?name the script to run}")
if [[ -n ${KUBE_DATA_VOLUME:-} ]]; then
	group=$(group_of "$KUBE_DATA_VOLUME")
	folders+=("$KUBE_DATA_VOLUME=$KUBE_DATA_VOLUME")
fi
{ read -r volumes && read -r mounts; } < <(volumes "${folders[@]}")
set_limits "${SLURM_GPUS:-0}"
run_pods <<END
apiVersion: v1
kind: Pod
metadata: {name: $name}
spec:
  restartPolicy: Never
  nodeSelector: {kubernetes.io/hostname: $node}
  securityContext: {runAsUser: $user, runAsGroup: $group}
  $volumes
  containers:
  - name: $name
    image: $(quoted "$image")
    command: [bash, $script]
    workingDir: $(quoted "$HOME")
    env:
    - {name: HOME, value: $(quoted "$HOME")}
    - {name: KUBE_SCRIPT, value: $script}
    $mounts
    $limits
END
