# shellcheck shell=bash
# What kube-slurm-*.sh share. These scripts stand for the wrappers of kube-slurm
# (github.com/kalenpeterson/kube-slurm) in its sbatch templates: each task of srun runs one
# pod on the cluster's node that has the name of the task's host. docs/existing-cluster.md
# lists the variables.
set -euo pipefail

# One template sets KUBE_IMAGE=KUBE_IMAGE=...
image=${KUBE_IMAGE:?name the image of the pod}
image=${image#KUBE_IMAGE=}
name=slurm-job-${SLURM_JOB_ID:?call this with srun in a job}
gpus=${SLURM_GPUS:-0}
user=$(id -u) group=$(id -g)

# quoted TEXT prints the text as a string of YAML.
quoted() { printf '"%s"' "$(sed 's/[\\"]/\\&/g' <<<"$1")"; }

# group_of FOLDER prints the group of a folder that pods share, and may not be root's.
group_of() {
	local group
	group=$(stat -c %g -- "$1") && [[ $group != 0 ]] || {
		echo "$(basename "$0"): the folder $1 needs a group that is not root's" >&2
		exit 1
	}
	echo "$group"
}

# volumes FOLDER=MOUNT... prints the volumes and volumeMounts of host folders, in one line each.
volumes() {
	local pair i=0 volumes='' mounts=''
	for pair; do
		volumes+="{name: v$i, hostPath: {type: Directory, path: $(quoted "${pair%%=*}")}}, "
		mounts+="{name: v$i, mountPath: $(quoted "${pair#*=}")}, "
		i=$((i + 1))
	done
	volumes="volumes: [$volumes]" mounts="volumeMounts: [$mounts]"
	printf '%s\n%s\n' "$volumes" "$mounts"
}

# limits NUMBER [MORE] prints the limits of a container.
limits() { if (($1 > 0)); then echo "resources: {limits: {nvidia.com/gpu: $1${2:+, $2}}}"; fi; }

# run_pods runs the manifests on standard input. Each task acts on its own, so berth must not
# take this one for a further task of another's run.
run_pods() {
	local berth
	berth=$(dirname "$(readlink -f "$0")")/berth
	[[ -f $berth && -x $berth ]] || berth=berth
	unset SLURM_PROCID SLURM_LOCALID
	exec "$berth" run --kubeconfig "${KUBECONFIG:-$HOME/.kube/config}" ${KUBE_NAMESPACE:+--namespace "$KUBE_NAMESPACE"} -f -
}
