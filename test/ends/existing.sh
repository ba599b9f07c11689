# shellcheck shell=bash
# Runs on an existing Kubernetes cluster. In most cases, this is a second berth cluster, whose API
# server listens on the loopback of n1; relay makes it reachable from other hosts.

# hosting starts that cluster. It creates guest.conf in alice's home directory: the kubeconfig
# of a user who may only edit the namespace guests.
hosting() {
	begin host alice login salloc -N"${hosts:-3}" --partition="${partition:-main}" --mem=1500 bash -c "berth up --image $image ${images:-} && echo hosting && until [ -e guest.end ]; do sleep 0.2; done"
	says host hosting
	invite_guests
}

# invite_guests makes guest.conf.
invite_guests() {
	local host_user=alice
	[[ -z $admin_conf ]] || host_user=root
	# shellcheck disable=SC2016 # this is the host's
	"$bed" run --user "$host_user" n1 sh -c 'cd /home/alice && PATH=/srv/ends/dist/libexec/berth:$PATH KUBECONFIG=${0:-$(ls /dev/shm/berth-*/*/kubeconfig)} sh '$here/hosting.sh "$admin_conf" >"$out/hosting" || fail "no kubeconfig for guests: $(cat "$out/hosting")"
}

# end_hosting ends that cluster.
end_hosting() {
	"$bed" run --user alice login touch guest.end
	ends host 0
	"$bed" run --user alice login rm guest.end guest.conf
}

# nothing_there reports whether the namespace guests is empty, and awaits_nothing waits for that.
nothing_there() { [[ -z $(kubectl get all,secrets -n guests -o name || echo unknown) ]]; }
awaits_nothing() { poll 60 nothing_there || fail "left in the cluster: $(kubectl get all,secrets -n guests)"; }

# ends_and_killed HOST ends a run on the host by scancel, and kills berth of another one. Both leave
# nothing in the cluster.
ends_and_killed() {
	begin s alice login srun -N1 -w "$1" --mem=100 --job-name=s berth run --kubeconfig guest.conf -f $here/loop.yaml
	says s started
	"$bed" run --user alice login scancel -n s
	ends s 143 15 1 137
	says s 'ended in order'
	awaits_nothing
	# The shell keeps the step alive. Otherwise slurmstepd would also kill the cleaner.
	begin k alice login srun -N1 -w "$1" --mem=100 --job-name=k sh -c "berth run --kubeconfig guest.conf -f $here/loop.yaml -f $here/web.yaml; echo code \$?; sleep 1000"
	says k started
	"$bed" run "$1" pkill -KILL -f '^[^ ]*berth run --kubeconfig'
	says k 'code 137'
	awaits_nothing
	"$bed" run --user alice login scancel -n k
	ends k 143 15 1 137
}

# Runs in jobs on an existing cluster have its exit code, and all their objects are deleted,
# however the run ends.
existing_cluster() {
	hosting
	# The exit code is the Job's, and its pods are on the hosts of the job. The batch script
	# starts no step itself.
	begin a alice login sh -c "printf '#!/bin/bash\nPATH=$PATH:/srv/ends/dist/bin\nberth run --kubeconfig guest.conf --pin -f $here/guest.yaml\n' >guest.sh
		sbatch -W -N2 -w n1,n2 --mem=100 -o guest.out guest.sh; code=\$?; cat guest.out; rm guest.sh guest.out; exit \$code"
	ends a 7
	[[ $(grep -o 'guest on n[12]' "$out/a" | sort -u | wc -l) == 2 ]] || fail "not on the job's hosts: $(cat "$out/a")"
	awaits_nothing
	# Runs that are refused, and one that succeeds.
	begin b alice login srun -N1 -w n1 --mem=100 sh -c "berth run --kubeconfig guest.conf --image $image -f $here/exit.yaml; echo options \$?
		printf 'apiVersion: v1\nkind: Namespace\nmetadata: {name: own}\n' | berth run --kubeconfig guest.conf -f -; echo scope \$?
		berth run --kubeconfig guest.conf --namespace default -f $here/exit.yaml; echo namespace \$?
		berth run --kubeconfig guest.conf -f $here/exit.yaml"
	ends b 0
	says b 'options 64'
	says b 'scope 65'
	says b 'namespace 65'
	says b 'no right to: create jobs.batch'
	awaits_nothing
	ends_and_killed n1
	end_hosting
}

# owner_deadline JOB prints activeDeadlineSeconds of the Job that owns the objects of a run.
owner_deadline() { kubectl get jobs -n guests -l "slurm.berth.dev/job=$1" -o 'jsonpath={.items[*].spec.activeDeadlineSeconds}'; }

# deadline_beyond JOB SECONDS reports whether the owner may exist longer than that.
deadline_beyond() { [[ $(owner_deadline "$1") -gt $2 ]]; }

# If all processes of a run are killed, the cluster deletes everything 90 s after the time
# limit of the job. The deadline follows a changed time limit. In this case, nothing needs the
# processor for two minutes.
existing_deadline() {
	local killed longer longest_run=600
	hosts=1 hosting
	begin a alice login srun -N1 --time=1 --mem=100 --job-name=a berth run --kubeconfig guest.conf -f $here/loop.yaml -f $here/web.yaml
	says a started
	killed=$("$bed" run ctl squeue -h -n a -o %i)
	# The cleaner could delete the owner before Slurm kills it.
	node pkill -KILL -f '^berth cleaner-role'
	"$bed" run --user alice login scancel --signal=KILL "$killed.0"
	ends a 137
	! deadline_beyond "$killed" 150 || fail "the deadline is $(owner_deadline "$killed") s after the start"
	[[ $(kubectl get pod/loop daemonset/web service/web secret/sesame -n guests -o name | wc -l) == 4 ]] || fail 'objects are gone before the deadline'
	begin b alice login srun -N1 --time=1 --mem=100 --job-name=b berth run --kubeconfig guest.conf -f $here/chatty.yaml
	says b started
	longer=$("$bed" run ctl squeue -h -n b -o %i)
	! deadline_beyond "$longer" 150 || fail 'the deadline was later from the start'
	"$bed" run ctl scontrol update JobId="$longer" TimeLimit=2
	poll 110 deadline_beyond "$longer" 150 || fail "the deadline is still $(owner_deadline "$longer") s after the start"
	! deadline_beyond "$longer" 210 || fail "the deadline is $(owner_deadline "$longer") s after the start"
	# The first limit is over, so the exit code must not be that of a time limit.
	"$bed" run --user alice login scancel "$longer"
	ends b 143 15 1 137
	poll 150 nothing_there || fail "left in the cluster: $(kubectl get all,secrets -n guests)"
	end_hosting
}

# begin_template SCRIPT OUTPUT submits a template of kube-slurm, waits, and stores its output, which
# may be a pattern of file names. This site has no GPUs. The bed does not share nodes between
# partitions. template also waits for the end.
begin_template() {
	begin "$1" alice login env HOME=/home/dgx SBATCH_PARTITION=Test sh -c 'cd ~/kube-slurm/templates && sbatch -W --gpus=0 "$1"; code=$?; cat $2 && rm $2; exit $code' sh "$@"
}
template() {
	begin_template "$@"
	ends "$1" 0
}

# written FILES TEXT reports whether one of the user's files has the text.
written() { "$bed" run --user alice login sh -c 'cat $1 2>/dev/null | grep -qF -- "$2"' sh "$@"; }

# relay makes the API server of the cluster reachable from all hosts, and changes guest.conf to that
# address.
relay() {
	# shellcheck disable=SC2016 # this is the host's
	begin relay alice n1 sh -c 'address=$(hostname -i | cut -d " " -f 1) && server=$(sed -n "s|^ *server: https://||p" guest.conf) &&
		sed -i "s|server: .*|server: https://$address:7443\n    tls-server-name: ${server%:*}|" guest.conf && echo "relays $server" &&
		exec socat "TCP-LISTEN:7443,bind=$address,fork,reuseaddr" "TCP:$server"'
	says relay relays
}

end_relay() {
	"$bed" run n1 pkill -TERM -f '^socat TCP-LISTEN:7443'
	ends relay 143
}

# placed POD NODE reports whether the scheduler placed a pod, which may be deleted, on the node.
placed() { kubectl get events -n guests -o 'jsonpath={.items[*].message}' | grep -qF "assigned guests/$1 to $2"; }

# The templates of kube-slurm, in the folders of their site, where alice is the user dgx. Stand-ins
# replace their images, which need GPUs.
kube_slurm() {
	local dgx=/home/dgx logs=/nas/volumes/homes/dgx data=/nas/slurm/data tests=/home/dgx/kube-slurm/containers/slurm-single-tf-job several
	hosts=2 partition=Test images="--image /srv/ends/images/kubeslurm.tar --image registry.local:31500/slurm-tensorflow:latest=$sif" hosting
	relay
	"$bed" run login install -d -o alice -g alice $dgx
	"$bed" run --user alice login sh -c "umask 022 && cp -r /srv/ends/kube-slurm $dgx/ && mkdir -p $dgx/.kube $tests $logs $data && cp guest.conf $dgx/.kube/config &&
		echo 'echo custom job in \$PWD as \$(id -u)' >$tests/test.sh &&
		printf '#!/bin/bash\necho script as \$(id -un) in \$PWD on \$(hostname)\nuntil [ -e $data/end ]; do sleep 0.2; done\n' >$data/run-sleep.sh &&
		chmod 755 $data/run-sleep.sh"
	template slurm-jupyter-job.sh $logs/slurm-jupyter-job.log
	says slurm-jupyter-job.sh 'hello from a sif'
	template slurm-single-job.sh $logs/slurm-single-job.log
	says slurm-single-job.sh 'job with slurm-single-job.log'
	template slurm-custom-image-job.sh $logs/slurm-single-job.log
	says slurm-custom-image-job.sh "custom job in $dgx as $("$bed" run --user alice login id -u)"
	# A pod on each host. Each finds the other by the name of its Service. A worker that has not seen
	# its controller would not end.
	begin_template slurm-multi-node-test.sh 'log*-*.*'
	poll 100 written "$dgx/kube-slurm/templates/log-*.out" 'is ready. Sleeping until' || fail "no worker: $("$bed" run login sh -c "cat $dgx/kube-slurm/templates/log*-*.*")"
	"$bed" run --user alice login touch $data/end
	timeout=200 ends slurm-multi-node-test.sh 0
	several=slurm-job-$(sed -n 's/^Submitted batch job //p' "$out/slurm-multi-node-test.sh")
	says slurm-multi-node-test.sh "Worker $several-n2 is ready"
	says slurm-multi-node-test.sh "script as alice in $dgx on $several-n1"
	says slurm-multi-node-test.sh "Controller $several-n1 has become unreachable"
	placed "$several-n1" n1 && placed "$several-n2" n2 || fail "not on the job's hosts: $(kubectl get events -n guests)"
	awaits_nothing
	"$bed" run login rm -r $dgx
	end_relay
	end_hosting
}

# upstream starts upstream's programs, as root and without berth, and creates guest.conf.
upstream() {
	begin u root n1 sh -c 'until [ -e /run/upstream.end ]; do sleep 0.2; done | /srv/berth/test/bench/upstream/host serve /srv/berth/test/images/out/docker/busybox.tar'
	says u ready
	admin_conf=/run/berth-bench-upstream/run/admin.conf
	invite_guests
	"$bed" run n1 chown alice /home/alice/guest.conf
}

end_upstream() {
	"$bed" run n1 touch /run/upstream.end
	ends u 0
	"$bed" run n1 rm /run/upstream.end /home/alice/guest.conf
}

# Upstream's programs are the existing cluster.
existing_upstream() {
	upstream
	begin a alice login srun -N1 -w n1 --mem=100 berth run --kubeconfig guest.conf --pin -f $here/guest.yaml
	ends a 7
	says a 'guest on n1'
	awaits_nothing
	# This host is not in the cluster.
	ends_and_killed n2
	end_upstream
}

# On upstream's cluster, partitions are Nodes and jobs are pods, whose logs the API server asks the
# controller for. The controller has the rights that setup prints.
existing_objects() {
	local guest=system:serviceaccount:guests:guest pki=/var/tmp/berth-bench-upstream/pki log
	upstream
	"$bed" run --user alice login /srv/ends/dist/bin/berth slurm-jobs setup -n guests --user $guest --trust-namespace --partition-nodes >"$out/setup"
	kubectl apply -f - <"$out/setup" >"$out/applied" || fail "setup: $(cat "$out/applied")"
	kubectl wait --for=condition=Established --timeout=15s crd/slurmjobs.wlm.sylabs.io >"$out/applied"
	# shellcheck disable=SC2016 # this is the host's
	begin c alice n2 sh -c 'exec berth slurm-jobs --kubeconfig guest.conf -n guests --trust-namespace --verbose \
		--partition-nodes bed --logs-address "$(hostname -i | cut -d " " -f 1)" --logs-client kube-apiserver'
	says c 'serves BridgeJobs'
	kubectl create -n guests -f - <<-'END' >"$out/created" || fail 'no object'
		{apiVersion: wlm.sylabs.io/v1alpha1, kind: SlurmJob, metadata: {name: cow}, spec: {batch: "#!/bin/sh\n#SBATCH --mem=10\necho begun\nuntil [ -e cow.end ]; do sleep 0.1; done\necho ended\nexit 3\n"}}
	END
	poll 60 runs_as_pod cow Running || fail "the job's pod: $(kubectl get pods -n guests -o wide)"
	[[ $(kubectl get node slurm-bed-main -o 'jsonpath={.status.conditions[*].status}') == True ]] || fail "the partition's node: $(kubectl get nodes)"
	# The API server follows the log. Nobody else may read it, without a certificate or with
	# another one of the cluster's authority.
	begin l root n1 env KUBECONFIG=$admin_conf /srv/ends/dist/libexec/berth/kubectl logs -n guests -f cow-job
	says l begun
	log=$(kubectl get node slurm-bed-main -o 'jsonpath=https://{.status.addresses[0].address}:{.status.daemonEndpoints.kubeletEndpoint.Port}/containerLogs/guests/cow-job/job')
	! "$bed" run n1 curl -sk "$log" >"$out/stolen" || fail "without a certificate: $(cat "$out/stolen")"
	! "$bed" run n1 curl -sk --cert $pki/admin.crt --key $pki/admin.key "$log" >"$out/stolen" || fail "as another user: $(cat "$out/stolen")"
	"$bed" run n1 curl -sk --cert $pki/apiserver.crt --key $pki/apiserver.key "$log" | grep -qx begun || fail "nobody reads $log"
	"$bed" run --user alice login touch cow.end
	ends l 0
	says l ended
	poll 60 runs_as_pod cow Failed || fail "the ended job's pod: $(kubectl get pods -n guests -o wide)"
	kubectl delete -n guests slurmjob cow >"$out/deleted"
	awaits_nothing
	"$bed" run n2 pkill -TERM -f '^[^ ]*berth slurm-jobs'
	ends c 0 130 143
	"$bed" run --user alice login sh -c 'rm cow.end slurm-*.out'
	end_upstream
}

# runs_as_pod NAME PHASE reports whether the pod of a SlurmJob has the phase.
runs_as_pod() { [[ $(kubectl get pod "$1-job" -n guests -o 'jsonpath={.spec.nodeName} {.status.phase}' 2>/dev/null) == "slurm-bed-main $2" ]]; }
