# shellcheck shell=bash
# Functions for kube-slurm-*.sh, which replace the wrappers of kube-slurm
# (github.com/kalenpeterson/kube-slurm) in its sbatch templates. Each task of srun runs one
# pod, on the node of the cluster that has the name of the task's host.
# docs/existing-cluster.md lists the variables.
set -euo pipefail

# One template of kube-slurm sets KUBE_IMAGE=KUBE_IMAGE=...
image=${KUBE_IMAGE:?name the image of the pod}
image=${image#KUBE_IMAGE=}
name=slurm-job-${SLURM_JOB_ID:?call this with srun in a job}
user=$(id -u) group=$(id -g)

# fail TEXT... prints the text to standard error and ends the script. Call no function that can
# fail in a here-document: the shell would continue.
fail() {
	echo "$(basename "$0"): $*" >&2
	exit 1
}

# quoted TEXT prints the text as a double-quoted YAML string.
quoted() { printf '"%s"' "$(sed 's/[\\"]/\\&/g' <<<"$1")"; }

node=$(quoted "${SLURMD_NODENAME:?call this with srun in a job}")

# group_of FOLDER prints the group ID of a folder. It exits with an error if that is root's.
group_of() {
	local group
	group=$(stat -c %g -- "$1") && [[ $group != 0 ]] || fail "the folder $1 needs a group that is not root's"
	echo "$group"
}

# volumes FOLDER=MOUNT... prints the fields volumes and volumeMounts for host folders, on one
# line each.
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

# set_limits GPUS [MORE] sets the variable limits to the field resources of a container, or to
# nothing without GPUs. GPUS has the form of srun --gpus: NUMBER, TYPE:NUMBER, or a list with
# commas.
set_limits() {
	local number sum=0
	for number in ${1//,/ }; do
		number=${number##*:}
		[[ $number =~ ^[0-9]+$ ]] || fail "not a number of GPUs: $1"
		sum=$((sum + 10#$number))
	done
	limits=''
	((sum == 0)) || limits="resources: {limits: {nvidia.com/gpu: $sum${2:+, $2}}}"
}

# run_pods runs the manifests on standard input. berth run does nothing in all tasks of a step
# but the first, so run_pods hides the number of the task.
run_pods() {
	local berth config=${KUBECONFIG:-$HOME/.kube/config}
	[[ $config != *:* || -e $config ]] || fail "KUBECONFIG=$config names several files: name one"
	berth=$(dirname "$(readlink -f "$0")")/berth
	[[ -f $berth && -x $berth ]] || berth=berth
	unset SLURM_PROCID SLURM_LOCALID
	exec "$berth" run --kubeconfig "$config" ${KUBE_NAMESPACE:+--namespace "$KUBE_NAMESPACE"} -f -
}
