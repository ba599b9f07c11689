#!/bin/bash
# Runs in a berth cluster with --slurm-jobs, whose images include busybox, and in a folder that all
# nodes share. Pipelines of pods and SlurmJobs, pods beside the Nodes of partitions, and WlmJobs.
set -euo pipefail
pipeline=$1
export KUBECACHEDIR=$PWD/kube-cache

fail() {
	kubectl get events
	kubectl get pods,nodes -o wide
	kubectl get slurmjobs,wlmjobs -o custom-columns=NAME:.metadata.name,STATUS:.status
	squeue
	tail -n 5 slurm-*.out
	echo "FAILED: $*"
	exit 1
}
await() { kubectl wait --timeout=150s "$@" || fail "no success: wait $*"; }
field() { kubectl get "$1" -o "jsonpath=$2"; }

# A WlmJob on two nodes, whose image is a folder, and one whose image is imported into the cache
# of the user's settings. They run beside all of the rest.
mkdir -p ~/.config/berth
echo "options: {image-cache: $PWD/cache-of-jobs}" >~/.config/berth/config.yaml
berth image import -q --image-cache images /srv/ends/images/busybox.tar
berth image export -q --image-cache images busybox:1.37 one.tar
berth image bundle -q --image-cache images busybox:1.37 bundle
mkdir bundle/rootfs/.singularity.d
cat >bundle/rootfs/.singularity.d/runscript <<'END'
#!/bin/sh
mkdir -p pair
echo "one of $SLURM_NNODES" >pair/$SLURM_NODEID
END
chmod +x bundle/rootfs/.singularity.d/runscript
kubectl create -f - <<END
apiVersion: wlm.sylabs.io/v1alpha1
kind: WlmJob
metadata: {name: pair}
spec:
  image: bundle/rootfs
  nodeSelector: {wlm.sylabs.io/partition: pair}
  resources: {nodes: 2, cpuPerNode: 1, memPerNode: 256, wallTime: 300}
  results: {from: pair, mount: {name: data, hostPath: {path: $PWD/data, type: DirectoryOrCreate}}}
---
apiVersion: wlm.sylabs.io/v1alpha1
kind: WlmJob
metadata: {name: cached}
spec:
  image: one.tar
  resources: {nodes: 1, cpuPerNode: 1, memPerNode: 256, wallTime: 300}
END

# Pods come to the real node only. A toleration lets them come to the Nodes of partitions, which
# refuse them, only if they also select a partition.
app() { # KIND NAME REST-OF-SPEC REST-OF-POD
	cat <<-END
		---
		apiVersion: apps/v1
		kind: $1
		metadata: {name: $2}
		spec:
		  selector: {matchLabels: {app: $2}}
		  $3
		  template:
		    metadata: {labels: {app: $2, real: "yes"}}
		    spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: "busybox:1.37", command: [sleep, "1000"]}], $4}
	END
}
selecting() { # NAME TOLERATIONS
	cat <<-END
		---
		apiVersion: v1
		kind: Pod
		metadata: {name: $1}
		spec: {nodeSelector: {wlm.sylabs.io/partition: main}, tolerations: [$2], containers: [{name: main, image: none}]}
	END
}
wlm='{key: virtual-kubelet.io/provider, operator: Exists}' own='{key: berth.dev/slurm-partition, operator: Exists}'
kubectl wait --timeout=60s --for=create node/slurm-n1-main node/slurm-n1-pair
{
	app Deployment plain 'replicas: 4' ''
	app Deployment tolerant 'replicas: 4' "tolerations: [$wlm]"
	app DaemonSet daemon '' ''
	selecting unscheduled "$own"
	selecting refused "$wlm"
	selecting tolerates-both "$wlm, $own"
} | kubectl create -f -
kubectl rollout status --timeout=100s deployment/plain || fail "pods wait"
kubectl rollout status --timeout=100s deployment/tolerant || fail "pods that tolerate the taint wait"
kubectl rollout status --timeout=100s daemonset/daemon || fail "pods of the DaemonSet wait"
[[ $(kubectl get pods -l real=yes -o 'custom-columns=NODE:.spec.nodeName' --no-headers | sort | uniq -c | xargs) == "9 n1" ]] || fail "pods are not all on the real node"
await --for=jsonpath='{.status.reason}'=NotASlurmJob pod/refused pod/tolerates-both
[[ $(field pod/refused '{.status.message}') == 'node slurm-n1-main stands for a Slurm partition and runs no pods: '* ]] || fail "the message: $(field pod/refused '{.status.message}')"
await --for=condition=PodScheduled=false pod/unscheduled
[[ $(field pod/unscheduled '{.status.conditions[0].message}') == *'untolerated taint(s)'* ]] || fail "the reason: $(field pod/unscheduled '{.status.conditions[0].message}')"

# Two pipelines. The second one stops where its SlurmJob fails.
volume="{name: data, hostPath: {path: $PWD/data, type: DirectoryOrCreate}}"
pod() { # NAME COMMAND
	cat <<-END
		---
		apiVersion: v1
		kind: Pod
		metadata: {name: $1}
		spec:
		  restartPolicy: Never
		  volumes: [$volume]
		  containers: [{name: main, image: "busybox:1.37", command: [sh, -c, "$2"], volumeMounts: [{name: data, mountPath: /data}]}]
	END
}
job() { # NAME COMMAND RESULTS FOLDER
	cat <<-END
		---
		apiVersion: wlm.sylabs.io/v1alpha1
		kind: SlurmJob
		metadata: {name: $1}
		spec:
		  batch: "#!/bin/sh\n#SBATCH --mem=10\n$2\n"
		  prepare: {to: $4, mount: $volume}
		  results: {from: $3, mount: $volume}
	END
}
{
	pod make 'seq 1 9 >/data/numbers'
	job add "mkdir sums && awk '{ n += \$1 } END { print n }' inputs/good/data/numbers >sums/all" sums inputs/good
	pod show 'echo the sum is `cat /data/sums/all`'
} >good
{
	job add 'echo half >part; exit 3' part inputs/bad
	pod never true
} >bad
"$pipeline" >pipeline.log 2>&1 &
for name in good bad; do
	kubectl create configmap "$name" --from-file=steps="$name"
	kubectl label configmap "$name" kind=pipeline
done
await --for=jsonpath='{.data.state}' configmap/good configmap/bad
[[ $(field configmap/good '{.data.state}') == Succeeded ]] || fail "the pipeline: $(field configmap/good '{.data.state}'); $(cat pipeline.log)"
[[ $(kubectl logs good-show) == 'the sum is 45' ]] || fail "the results: $(kubectl logs good-show)"
[[ $(field configmap/bad '{.data.state}') == 'Failed at step add: job '*', exit code 3; '*'part is in volume data'* ]] || fail "the failed pipeline: $(field configmap/bad '{.data.state}')"
[[ $(kubectl get pod bad-never 2>&1) == *'not found'* ]] || fail "a step after the failed one exists"

await --for=jsonpath='{.status.status}'=Succeeded wlmjob/pair wlmjob/cached
[[ $(field wlmjob/pair '{.status.nodes}') == 'n[2-3]' ]] || fail "the WlmJob ran on $(field wlmjob/pair '{.status.nodes}')"
[[ $(cat data/pair/0 data/pair/1) == $'one of 2\none of 2' ]] || fail "the results of the WlmJob: $(ls -lR data/pair)"
[[ -n $(find cache-of-jobs -type f) ]] || fail "the cache of images is empty"
echo 'pipelines and WlmJobs ended as they should'
