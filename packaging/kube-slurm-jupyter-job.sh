#!/bin/bash
# Runs a Jupyter image with a Service and an Ingress, and prints the URL of the notebook. The
# image starts as root, as in kube-slurm, and reads the variables NB_*.
. "$(dirname "$(readlink -f "$0")")/kube-slurm.sh"
port=${KUBE_TARGET_PORT:-8888} path=/jupyter/$name
token=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
{ read -r volumes && read -r mounts; } < <(volumes "${KUBE_JUPYTER_WORK_VOLUME:-${KUBE_WORK_VOLUME:-$HOME}}=/workspace")
echo "Your Jupyter notebook: https://${KUBE_CLUSTER_DNS:-nvidia-pod}$path?token=$token"
set_limits "${SLURM_GPUS:-0}"
run_pods <<END
apiVersion: v1
kind: Service
metadata: {name: $name, labels: {app: $name}}
spec:
  ports: [{name: http, port: $port}]
  selector: {app: $name}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: $name}
spec:
  rules:
  - host: $(quoted "${KUBE_CLUSTER_DNS:-nvidia-pod}")
    http:
      paths:
      - {path: $path, pathType: Prefix, backend: {service: {name: $name, port: {number: $port}}}}
---
apiVersion: v1
kind: Pod
metadata: {name: $name, labels: {app: $name}}
spec:
  restartPolicy: Never
  nodeSelector: {kubernetes.io/hostname: $node}
  $volumes
  containers:
  - name: $name
    image: $(quoted "$image")
    env:
    - {name: NB_TOKEN, value: "$token"}
    - {name: NB_USER, value: $(quoted "$(id -un)")}
    - {name: NB_UID, value: "$user"}
    - {name: NB_GROUP, value: $(quoted "$(id -gn)")}
    - {name: NB_GID, value: "$group"}
    - {name: NB_PREFIX, value: $path}
    ports: [{name: jupyter-http, containerPort: $port}]
    $mounts
    $limits
END
