#!/bin/bash
# In the shell of an allocation of one node. Unchanged examples of KNoC, HPK and slurm-bridge get
# the nodes that they ask for.
set -euo pipefail
shopt -s inherit_errexit
image=$1 here=${0%/*} standin=/srv/ends/standin examples=/srv/ends/neighbours
export PATH=$PATH:/srv/ends/dist/libexec/berth
. "$here/elastic-lib.sh"
trap 'elastic_debris' ERR
berth up --elastic=8 --elastic-idle=10s --image "$image" --image "${image%/*}/dialects.tar"
eval "$(berth up --env 2>/dev/null)"
kubectl create namespace slurm-bridge
kubectl apply -f "$here/elastic-sets.yaml" >/dev/null
bridge=$examples/slurm-bridge/hack/examples

# phases prints the number of pods in each phase, in the namespace slurm-bridge. jobs_of prints the
# nodes and time limits of the jobs with a name.
phases() { kubectl -n slurm-bridge get pods "$@" -o jsonpath='{.items[*].status.phase}' | xargs -n1 | sort | uniq -c | xargs; }
until_phases() { local want=$1; shift; until [[ $(phases "$@") == "$want" ]]; do sleep 0.2; done; }
jobs_of() { squeue -h -n "$1" -o '%D %l' | sort | xargs; }
until_jobs() { until [[ $(jobs_of "$1") == "$2" ]]; do sleep 0.2; done; }
gone() { until [[ -z $(squeue -h -u "$USER" -o %A | grep -vx "$SLURM_JOB_ID") && -z $(records) ]]; do sleep 0.2; done; }

# Selectors of virtual nodes. The pod starts again and again: its restartPolicy is Always.
kubectl apply -f "$examples/KNoC/examples/busyecho.yaml"
until kubectl logs busyecho --previous 2>/dev/null | grep -q 'Hello from container'; do sleep 0.2; done
echo "KNoC: $(kubectl get pod busyecho -o jsonpath='{.spec.nodeSelector}')"
kubectl delete pod busyecho --wait=false
kubectl apply -f "$examples/KNoC/examples/configMap.yaml" -f "$examples/KNoC/examples/busyecho_with_cm.yaml"
kubectl apply -f "$examples/HPK/examples/apps/analytics-spark/shell-demo.yaml"
kubectl wait --for=condition=Ready pod/busyecho3 pod/shell-demo --timeout=120s >/dev/null
echo "HPK and KNoC: $(kubectl exec busyecho3 -- cat /etc/config/enemies)"
kubectl delete pod busyecho3 shell-demo --wait=false

# A pod with a job name and a time limit is one job, also where another node has room.
kubectl apply -f "$bridge/pod/sleep.yaml"
until_jobs pod-single '1 1:00'
echo "pod: one job of $(jobs_of pod-single)"
until_phases '1 Succeeded'
kubectl -n slurm-bridge delete pod pod-single
# The annotation is on the Job.
kubectl apply -f "$bridge/job/single.yaml"
until [[ -n $(jobs_of job-sleep-single) ]]; do sleep 0.2; done
kubectl apply -f "$bridge/job/large.yaml"
until [[ $(jobs_of job-sleep-large | wc -w) -ge 4 ]]; do sleep 0.2; done
kubectl -n slurm-bridge wait --for=condition=Complete job/job-sleep-single job/job-sleep-large --timeout=180s >/dev/null
echo "jobs: $(kubectl -n slurm-bridge get jobs -o jsonpath='{.items[*].status.succeeded}')"
kubectl -n slurm-bridge delete job --all
gone

# A gang is one job of two nodes.
kubectl apply -f "$bridge/podgroup-coscheduling/sleep.yaml"
until [[ $(jobs_of podgroup-sleep) == 2\ * ]]; do sleep 0.2; done
until_phases '2 Succeeded'
echo "pod group: $(kubectl -n slurm-bridge get pods -o jsonpath='{.items[*].spec.nodeName}' | xargs -n1 | sort -u | wc -l) nodes"
kubectl -n slurm-bridge delete pods,podgroups --all
gone

# JobSets: the stand-in makes their Jobs.
for name in single coordinator; do
	kubectl apply -f "$bridge/jobset/$name.yaml"
	kubectl -n slurm-bridge get jobset "jobset-$name" -o json | "$standin" | kubectl apply -f -
	[[ $name == single ]] || until [[ $(squeue -h -n "berth-join-$SLURM_JOB_ID" -o %D) == 5 ]]; do sleep 0.2; done
	kubectl -n slurm-bridge wait --for=condition=Complete job --all --timeout=240s >/dev/null
	echo "JobSet $name: $(phases)"
	kubectl -n slurm-bridge delete jobs,jobsets --all
	gone
done

# Each group of a LeaderWorkerSet is one job of three nodes.
kubectl apply -f "$bridge/lws/lws.yaml"
kubectl -n slurm-bridge get leaderworkerset vllm -o json | "$standin" | kubectl apply -f -
until_phases '6 Running'
echo "LeaderWorkerSet: jobs of $(squeue -h -n "berth-join-$SLURM_JOB_ID" -o %D | xargs) nodes"
kubectl -n slurm-bridge delete pods,leaderworkersets --all --grace-period=1
gone

# An option without a meaning here is ignored. An option that must not be ignored gets no job.
kubectl run ignored --image=busybox:1.37 --restart=Never --annotations='slurm.hpk.io/flags=--nodes=4 --wrap=id -t 2' -- true
until events WishIgnored | grep -q -e '--wrap: the containers are the program of the job'; do sleep 0.2; done
kubectl run blocked --image=busybox:1.37 --restart=Never --annotations='slurm.berth.dev/nodelist=/etc/passwd' -- true
until events NoNodeRequested | grep -q 'list the nodes instead of a file'; do sleep 0.2; done
kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/ignored --timeout=120s >/dev/null
echo "told: $(kubectl get pod blocked -o jsonpath='{.status.phase}')"
berth down
exit 7
