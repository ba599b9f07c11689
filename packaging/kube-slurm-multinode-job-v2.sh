#!/bin/bash
# Runs one pod of kube-slurm's OpenMPI image on each host of the job. The pod on the first host
# is the controller, which runs KUBE_SCRIPT, and the others are workers. entrypoint.sh in the
# image starts OpenMPI.
. "$(dirname "$(readlink -f "$0")")/kube-slurm.sh"
name+=-$SLURMD_NODENAME
controller=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
role=worker
[[ $SLURMD_NODENAME != "$controller" ]] || role=controller
group=$(group_of "${KUBE_DATA_VOLUME:?name the folder with the data}")
folders=("$HOME=$HOME" "$KUBE_DATA_VOLUME=$KUBE_DATA_VOLUME")
[[ ! -d /apps ]] || folders+=(/apps=/apps)
{ read -r volumes && read -r mounts; } < <(volumes "${folders[@]}")
# variable NAME VALUE prints an element of the field env.
variable() { echo "{name: $1, value: $(quoted "$2")}"; }
set_limits "${SLURM_GPUS_PER_NODE:-0}" "rdma/hca_shared_devices_a: 8"
run_pods <<END
apiVersion: v1
kind: Service
metadata: {name: $name, labels: {app: $name}}
spec:
  ports: [{name: sshd, port: 2222}]
  selector: {app: $name}
---
apiVersion: v1
kind: Pod
metadata: {name: $name, labels: {app: $name}}
spec:
  restartPolicy: Never
  shareProcessNamespace: true
  nodeSelector: {kubernetes.io/hostname: $node}
  ${volumes%]}{name: currentuser, emptyDir: {sizeLimit: 500Mi}}]
  initContainers:
  - name: init-$name
    image: $(quoted "$image")
    securityContext: {runAsUser: 0, runAsGroup: 0}
    command: [/usr/local/bin/entrypoint.sh, init]
    env:
    - $(variable KUBE_JOB_UID "$user")
    - $(variable KUBE_JOB_FSGID "$group")
    - $(variable KUBE_JOB_USERNAME "$(id -un)")
    - $(variable KUBE_JOB_FS_GROUPNAME "$(getent group "$group" | cut -d: -f1)")
    - $(variable USER_HOME "$HOME")
    volumeMounts: [{name: currentuser, mountPath: /currentuser}]
  containers:
  - name: $name
    image: $(quoted "$image")
    securityContext: {runAsUser: $user, runAsGroup: $group, capabilities: {add: [IPC_LOCK]}}
    command: [/usr/local/bin/entrypoint.sh, $role]
    workingDir: $(quoted "$HOME")
    ports: [{name: sshd, containerPort: 2222}]
    env:
    - $(variable HOME "$HOME")
    - $(variable KUBE_SCRIPT "${KUBE_SCRIPT:-}")
    - $(variable KUBE_SCRIPT_VARS "${KUBE_SCRIPT_VARS:-}")
    - $(variable OPENMPI_CONTROLLER "$controller")
    - $(variable OPENMPI_CONNECTION_TIMEOUT "${OPENMPI_CONNECTION_TIMEOUT:-300}")
    - $(variable SLURM_ARRAY_TASK_ID "${SLURM_ARRAY_TASK_ID:-}")
    - $(variable SLURM_JOB_NODELIST "$SLURM_JOB_NODELIST")
    - $(variable SLURM_JOB_NUM_NODES "${SLURM_JOB_NUM_NODES:-0}")
    - $(variable SLURM_GPUS_PER_NODE "${SLURM_GPUS_PER_NODE:-0}")
    - $(variable SLURM_JOB_ID "$SLURM_JOB_ID")
    ${mounts%]}{name: currentuser, mountPath: /currentuser},
      {name: currentuser, mountPath: /etc/passwd, subPath: passwd}, {name: currentuser, mountPath: /etc/group, subPath: group}]
    $limits
END
