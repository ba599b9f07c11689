# shellcheck shell=bash
# Runs on an existing Kubernetes cluster. In most cases, this is a second berth cluster, whose API
# server listens on the loopback of n1.

# hosting starts that cluster. It creates guest.conf in alice's home directory: the kubeconfig
# of a user who may only edit the namespace guests.
hosting() {
	begin host alice login salloc -N"${hosts:-3}" --mem=1500 bash -c "berth up --image $image ${images:-} && echo hosting && until [ -e guest.end ]; do sleep 0.2; done"
	says host hosting
	"$bed" run --user alice n1 sh -c 'PATH=/srv/ends/dist/libexec/berth:$PATH KUBECONFIG=$(ls /dev/shm/berth-*/*/kubeconfig) sh '$here/hosting.sh >"$out/hosting" || fail "no kubeconfig for guests: $(cat "$out/hosting")"
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
	# A run that ends by scancel, and one whose berth is killed.
	begin c alice login srun -N1 -w n1 --mem=100 --job-name=c berth run --kubeconfig guest.conf -f $here/loop.yaml
	says c started
	"$bed" run --user alice login scancel -n c
	ends c 143 15 1 137
	says c 'ended in order'
	awaits_nothing
	# The shell keeps the step alive. Otherwise slurmstepd would also kill the cleaner.
	begin d alice login srun -N1 -w n1 --mem=100 --job-name=d sh -c "berth run --kubeconfig guest.conf -f $here/loop.yaml; echo code \$?; sleep 1000"
	says d started
	node pkill -KILL -f '^[^ ]*berth run --kubeconfig'
	says d 'code 137'
	awaits_nothing
	"$bed" run --user alice login scancel -n d
	ends d 143 15 1 137
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

# template SCRIPT OUTPUT submits a template of kube-slurm, waits, and stores its output. This site
# has no GPUs.
template() {
	begin "$1" alice login env HOME=/home/dgx sh -c 'cd /srv/ends/kube-slurm/templates && sbatch -W --gpus=0 "$1"; code=$?; cat "$2" && rm "$2"; exit $code' sh "$@"
	ends "$1" 0
}

# Templates of kube-slurm, in the folders of their site, where alice is the user dgx. Stand-ins
# replace their images, which need GPUs. The template for several hosts is missing: the API server
# of this cluster is not reachable from the second one.
kube_slurm() {
	local dgx=/home/dgx logs=/nas/volumes/homes/dgx tests=/home/dgx/kube-slurm/containers/slurm-single-tf-job
	hosts=1 images="--image /srv/ends/images/kubeslurm.tar --image registry.local:31500/slurm-tensorflow:latest=$sif" hosting
	"$bed" run login install -d -o alice -g alice $dgx
	"$bed" run --user alice login sh -c "umask 022 && mkdir -p $dgx/.kube $tests $logs && cp guest.conf $dgx/.kube/config &&
		echo 'echo custom job in \$PWD as \$(id -u)' >$tests/test.sh"
	template slurm-jupyter-job.sh $logs/slurm-jupyter-job.log
	says slurm-jupyter-job.sh 'hello from a sif'
	template slurm-single-job.sh $logs/slurm-single-job.log
	says slurm-single-job.sh 'job with slurm-single-job.log'
	template slurm-custom-image-job.sh $logs/slurm-single-job.log
	says slurm-custom-image-job.sh "custom job in $dgx as $("$bed" run --user alice login id -u)"
	awaits_nothing
	"$bed" run login rm -r $dgx
	end_hosting
}

# Upstream's programs, which root has started without berth, are the existing cluster.
existing_upstream() {
	begin u root n1 sh -c 'until [ -e /run/upstream.end ]; do sleep 0.2; done | /srv/berth/test/bench/upstream/host serve /srv/berth/test/images/out/docker/busybox.tar'
	says u ready
	admin_conf=/run/berth-bench-upstream/run/admin.conf
	"$bed" run n1 sh -c "cd /home/alice && PATH=/srv/ends/dist/libexec/berth:\$PATH KUBECONFIG=$admin_conf sh $here/hosting.sh && chown alice guest.conf" >"$out/hosting" || fail "no kubeconfig for guests: $(cat "$out/hosting")"
	begin a alice login srun -N1 -w n1 --mem=100 berth run --kubeconfig guest.conf --pin -f $here/guest.yaml
	ends a 7
	says a 'guest on n1'
	# The other jobs are on a host that is not in the cluster.
	awaits_nothing
	begin b alice login srun -N1 -w n2 --mem=100 --job-name=b berth run --kubeconfig guest.conf -f $here/loop.yaml
	says b started
	"$bed" run --user alice login scancel -n b
	ends b 143 15 1 137
	says b 'asked to end'
	awaits_nothing
	begin c alice login srun -N1 -w n2 --mem=100 --job-name=c sh -c "berth run --kubeconfig guest.conf -f $here/loop.yaml -f $here/web.yaml; echo code \$?; sleep 1000"
	says c started
	"$bed" run n2 pkill -KILL -f '^[^ ]*berth run --kubeconfig'
	says c 'code 137'
	awaits_nothing
	"$bed" run --user alice login scancel -n c
	ends c 143 15 1 137
	"$bed" run n1 touch /run/upstream.end
	ends u 0
	"$bed" run n1 rm /run/upstream.end /home/alice/guest.conf
}
