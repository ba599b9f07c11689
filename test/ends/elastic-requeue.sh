#!/bin/bash
# On the login host. The job of an elastic cluster is requeued and starts on another host. Pods on
# nodes of other jobs run on meanwhile, and belong to the cluster again.
set -Eeuo pipefail
shopt -s inherit_errexit
trap 'cat "$HOME/cluster" "$HOME"/join-*' ERR
image=$1 how=$2 here=${0%/*}
partition=() folder=''
[[ $how != preempt ]] || partition=(-p low)
# In one way, the nodes prove themselves by a key in a folder, instead of munge.
[[ $how != lose ]] || { folder="--rendezvous-dir $HOME/meet" && mkdir -m 700 "$HOME/meet"; }
cluster=$(sbatch --parsable --requeue --open-mode=append "${partition[@]}" -N1 --mem=1500 -o "$HOME/cluster" --wrap "berth up --elastic=3 $folder --state st --image $image && exec sleep infinity")
until grep -qs 'is up' "$HOME/cluster"; do sleep 0.2; done
host() { squeue -h -j "$cluster" -t RUNNING -o %N; }
first=$(host)
join() { sbatch --parsable -N1 --mem=900 -x "$first" -o "$HOME/join-%j" --wrap "exec berth join $cluster $folder"; }
one=$(join)
other=$(join)
# The srun of a tunnel from here outlives the host of its step, and in the end cancels the step
# with the same number of the job's next start. So there is no tunnel if a host will be lost.
k() {
	case $how in
	requeue | preempt) berth kubectl "$cluster" "$@" ;;
	lose) srun --jobid="$cluster" --overlap -N1 -n1 -Q berth kubectl "$@" ;;
	esac
}
nodes() { k get nodes --no-headers 2>/dev/null | awk '{print $1 ($2 == "Ready" ? "" : ":" $2)}' | sort | xargs; }
ready() { until [[ $(nodes) == *-"$one"* && $(nodes) == *-"$other"* && $(nodes) != *:* ]]; do sleep 0.5; done; }
ready
mkdir "$HOME/counts"
sed "s/CLUSTER/$cluster/" "$here/elastic-requeue.yaml" | k apply -f -
k rollout status statefulset/counter --timeout=90s
k rollout status deployment/web --timeout=60s
# facts prints what a restart or another pod would change.
facts() {
	k get pods -l 'app in (counter,web)' --no-headers -o custom-columns=N:.metadata.name,U:.metadata.uid,H:.spec.nodeName,I:.status.podIP,C:.status.containerStatuses[0].containerID,R:.status.containerStatuses[0].restartCount | sort
}
before=$(facts)
echo "$before"
k get service web -o 'jsonpath={.spec.clusterIP}{"\n"}' >"$HOME/service"
# A pod has a job that waits.
k run waiting --image=busybox:1.37 --restart=Never --annotations=slurm.berth.dev/begin=now+1hour -- true
until [[ $(squeue -h -n "berth-join-$cluster" -o %r) == BeginTime ]]; do sleep 0.2; done
waits=$(squeue -h -n "berth-join-$cluster" -o %A)
# Everything until here is saved, also if the host of the head is lost.
touch "$HOME/before"
k create configmap saved
until [[ $HOME/st/cluster.state -nt $HOME/before ]]; do sleep 0.2; done
echo "ready to move from $first"
until [[ -z $(host) ]]; do sleep 0.1; done
# Each pod counts, and reaches the Service, also while there is no head.
count() { awk 'END {print NR}' "$HOME/counts/$1"; }
for pod in counter-0 counter-1; do
	from=$(count "$pod")
	until (($(count "$pod") > from + 3)); do sleep 0.2; done
done
[[ -z $(host) ]] || echo 'the head was back before the pods had counted'
echo 'the pods count without a head'
until [[ -n $(host) && $(host) != "$first" ]]; do sleep 0.2; done
echo "the head is elsewhere"
until [[ $(grep -c 'is up' "$HOME/cluster") == 2 ]]; do sleep 0.2; done
until grep -q 'is back in the cluster' "$HOME/join-$one" && grep -q 'is back in the cluster' "$HOME/join-$other"; do sleep 0.2; done
ready
echo "the nodes are back"
after=$(facts)
diff <(echo "$before") <(echo "$after") && echo 'the pods are the same'
k get service web -o 'jsonpath={.spec.clusterIP}{"\n"}' | diff "$HOME/service" - && echo 'the Service is the same'
# Logs, exec, Services and new pods work; also a watch that a pod began before.
k logs counter-0 --tail=1 | grep -q '^[0-9]' && echo 'logs work'
for pod in counter-0 counter-1; do k exec "$pod" -- wget -T 10 -qO- http://web:8080 >/dev/null; done
echo 'exec and the Service work'
k scale deployment web --replicas=4
k rollout status deployment/web --timeout=60s
k delete pod counter-1 --now
echo 'pods come and go'
k get events --field-selector reason=NodeRequested -o 'jsonpath={.items[*].message}' | grep -q "job $waits brings a node" &&
	[[ $(squeue -h -n "berth-join-$cluster" -o %A) == "$waits" ]] && echo 'the job that waits is the same'
# No number is missing, so no counter began again, and no request failed.
awk '$1 != NR {exit 1}' "$HOME/counts/counter-0" && echo 'no count is missing'
grep -h failed "$HOME"/counts/* | sed 's/^/unreached: /' || echo 'the Service was always reached'
# Either way, the nodes know that the cluster does not come back, and do not wait for it.
[[ $how == lose ]] || berth down "$cluster"
scancel "$cluster"
until [[ -z $(squeue -h -u "$USER") ]]; do sleep 0.2; done
cat "$HOME/cluster" "$HOME"/join-*
rm -rf "$HOME/meet"
rm -r "$HOME"/{cluster,before,counts,service,st,.config} "$HOME"/join-*
exit 7
