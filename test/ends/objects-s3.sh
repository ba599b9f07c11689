#!/bin/bash
# Serves BridgeJobs of the berth cluster that runs this script, with scripts and results in an S3
# server that is away for a while, twice. The exit code is 0 if nothing was lost and each script ran
# once.
set -euo pipefail
mkdir -p ~/s3/store/mybucket ~/s3/store/results
cd ~/s3
export KUBECACHEDIR=$PWD/cache ROOT_ACCESS_KEY=key ROOT_SECRET_KEY=secret
bridge=/srv/ends/Bridge-Operator/samples kind=bridgejob
. "${0%/*}/objects-status.sh"

fail() {
	kubectl get bridgejobs -o custom-columns=NAME:.metadata.name,STATUS:.status
	squeue --states=all
	find store
	echo "FAILED: $*"
	exit 1
}
# fill FILE SCRIPT prints a file of Bridge Operator with its placeholders filled in.
fill() {
	sed "s|{{RESOURCE_URL}}|http://cluster:6820/|; s|{{RESOURCE_SECRET}}|mysecret|; s|{{JOBSCRIPT}}|mybucket:${2:-}|; s|{{S3_SECRET}}|mysecret-s3|
		s|{{ENDPOINT}}|127.0.0.1:9000|; s|\[access_key\]|$ROOT_ACCESS_KEY|; s|\[secret_key\]|$ROOT_SECRET_KEY|" "$bridge/core/$1"
}
[[ -x /srv/ends/s3server ]] || { echo "FAILED: no S3 server: make -C test/s3server" && exit 1; }
start_s3() {
	/srv/ends/s3server 127.0.0.1:9000 store >s3.log &
	s3=$!
}
stop_s3() {
	kill -KILL $s3
	wait $s3 || true
}
serve() {
	berth slurm-jobs --kubeconfig carol.conf -n default --trust-namespace --root "$PWD" --root /home/ec2-user --state-dir "$PWD/state" \
		--resource-url http://cluster:6820/ --s3-endpoint http://127.0.0.1:9000 &
	controller=$!
}

# The controller has the rights that setup gives it.
carol=system:serviceaccount:default:carol
kubectl create serviceaccount carol
berth slurm-jobs setup -n default --user "$carol" --trust-namespace --s3-secret mysecret-s3 | kubectl apply -f -
kubectl wait --for=condition=Established --timeout=60s crd/bridgejobs.bridgejob.ibm.com
cp "$KUBECONFIG" carol.conf
kubectl --kubeconfig carol.conf config set-credentials carol --token="$(kubectl create token carol --duration=1h)" >carol
kubectl --kubeconfig carol.conf config set-context --current --user=carol >carol
serve

# An unchanged job waits for its Secret, and for S3.
cp "$bridge/tutorials/slurm_batch.sh" store/mybucket/
fill operator/job1slurm.yaml slurm_batch.sh | kubectl create -f -
await 120 contains slurmjob message 'has no Secret mysecret-s3'
fill secrets/s3secret.yaml | kubectl create -f -
await 120 contains slurmjob message 'is away'
[[ -z $(squeue --noheader --states=all --user="$USER" --name=test) ]] || fail "a job without a script"
start_s3
await 120 is slurmjob jobstatus DONE
grep -qx '/home/ec2-user/test/\?' /home/ec2-user/test/slurmjob-sample.out || fail "output: $(cat /home/ec2-user/test/slurmjob-sample.out)"

# S3 is away when a job ends, and the controller is killed meanwhile.
printf '#!/bin/sh\necho up >>%s/ran\nuntil [ -e %s/end ]; do sleep 0.1; done\necho weights >model\necho done\n' "$PWD" "$PWD" >store/mybucket/up.sh
{ fill operator/job1slurm.yaml up.sh | sed 's/name: slurmjob$/name: up/' && printf '  s3upload: {bucket: results, files: model}\n'; } | kubectl create -f -
await 120 is up state RUNNING
stop_s3
touch end
await 120 contains up message 'is away'
is up state COMPLETED && is up jobstatus RUNNING && is up results COLLECTING || fail "while S3 is away: $(field up jobstatus)"
kill -KILL $controller
wait $controller || true
kubectl delete lease berth-slurm-jobs
start_s3
serve
await 120 is up jobstatus DONE
is up results COLLECTED || fail "the results"
[[ $(cd store/results/up && echo *) == 'model slurmjob-sample.err slurmjob-sample.out' ]] || fail "uploaded: $(find store/results)"
[[ $(cat store/results/up/model ran store/results/up/slurmjob-sample.out | tr '\n' ' ') == 'weights up done ' ]] || fail "another content"

# After an attempt that fails, the next one omits the files that are uploaded already.
printf '#!/bin/sh\necho weights >model\necho first >changing\n' >store/mybucket/again.sh
{ fill operator/job1slurm.yaml again.sh | sed 's/name: slurmjob$/name: again/' && printf '  s3upload: {bucket: results, files: "model, changing, late"}\n'; } | kubectl create -f -
await 120 contains again message '4 of 5 files are in bucket results'
echo kept >store/results/again/model
echo second >/home/ec2-user/test/changing
echo late >/home/ec2-user/test/late
await 120 is again results COLLECTED
[[ $(cat store/results/again/{model,changing,late} | tr '\n' ' ') == 'kept second late ' ]] || fail "uploaded again: $(cat store/results/again/*)"

# What S3 refuses has its reason in the status.
fill operator/job1slurm.yaml none.sh | sed 's/name: slurmjob$/name: none/' | kubectl create -f -
await 120 is none state REJECTED
contains none message 'has no object "none.sh" in bucket mybucket: upload it' || fail "another message"
kill $controller $s3
wait $controller
echo 'nothing lost, nothing twice'
