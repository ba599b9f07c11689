#!/bin/bash
# Runs the default command of KUBE_IMAGE, with KUBE_WORK_VOLUME mounted at /workspace.
. "$(dirname "$(readlink -f "$0")")/kube-slurm.sh"
{ read -r volumes && read -r mounts; } < <(volumes "${KUBE_WORK_VOLUME:?name the working directory}=/workspace")
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
    $mounts
    $limits
END
