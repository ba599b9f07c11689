# shellcheck shell=bash
# The state that the next job restores, and jobs that Slurm ends early.

as_alice() { "$bed" run --user alice login env PATH=/srv/ends/dist/bin:/usr/bin:/bin "$@"; }

# submit NAME ARGS... submits a batch job of berth with the output file of NAME.
submit() {
	local name=$1
	shift
	begin "$name" alice login berth submit --wait --mem=1500 -o "/home/alice/$name.out" "$@"
}

ready="kubectl wait --for=condition=Ready --timeout=40s pod/loop"

# A job on other nodes restores the objects. Pods run on the new nodes with new tokens,
# without data that was on the old nodes.
state_next() {
	submit a -N2 -w n1,n2 --state st --image $image -f $here/loop.yaml -f $here/claim.yaml -- \
		sh -c "$ready && kubectl wait --for=condition=Ready pod/claims && kubectl exec claims -- sh -c 'echo x >/data/x' && kubectl create configmap note --from-literal=of=a"
	ends a 0
	[[ $(as_alice stat -c %a st st/cluster.state .config/berth/state.key | xargs) == "700 600 600" ]] || fail "modes: $(as_alice stat -c '%a %n' st st/cluster.state .config/berth/state.key)"
	[[ $(as_alice sh -c 'ls st') == cluster.state ]] || fail "the folder holds $(as_alice ls st)"
	! as_alice zgrep -aq 'open-sesame\|b3Blbi1zZXNhbWUt' st/cluster.state || fail "a Secret can be read"
	submit b -N1 -w n3 --state st --image $image -- \
		sh -c "$ready && kubectl get pod loop -o 'jsonpath={.spec.nodeName} ' && kubectl get configmap note -o 'jsonpath={.data.of}' && kubectl exec loop -- cat /secret/word && kubectl wait --for=condition=Ready pod/claims && kubectl exec claims -- ls /data && kubectl get nodes -o name"
	ends b 0
	says b 'n3 a'
	says b open-sesame-4711
	says b 'new, empty volumes'
	never_says b node/n1
	submit c -N1 --state st --state-secrets=omit --image $image -- kubectl get secrets
	ends c 0
	says c '1 Secrets were left out'
	as_alice rm -r st .config
}

# A requeued job continues with its objects, even after a node failed.
state_requeue() {
	local id
	as_alice sh -c 'cat >again.sh; chmod +x again.sh' <<-END
		#!/bin/sh
		if kubectl get configmap note; then
			$ready && echo "back on attempt \$SLURM_RESTART_COUNT: \$(kubectl get pod loop -o 'jsonpath={.spec.nodeName}')" && exit 7
		fi
		kubectl apply -f $here/loop.yaml && $ready && kubectl create configmap note && echo noted; exec sleep 1000
	END
	for how in requeue node; do
		submit a -N2 --requeue --open-mode=append --state st --image $image -- ./again.sh
		says a noted
		id=$(job)
		case $how in
		requeue) "$bed" run ctl scontrol requeue "$id" ;;
		node) # Its objects have to be saved by then.
			poll 60 as_alice test -e st/cluster.state || fail "nothing is saved"
			"$bed" run ctl scontrol update nodename=n2 state=down reason=test
			;;
		esac
		timeout=200 ends a 7
		says a 'back on attempt 1'
		[[ $how == requeue ]] || "$bed" run ctl scontrol update nodename=n2 state=resume 2>/dev/null # unless it is back by itself
		as_alice rm -r st .config a.out
	done
	as_alice rm again.sh
}

# The job of an elastic cluster moves to another host, because it is requeued or preempted, or its
# host is lost. Nodes of other jobs stay, with their pods.
elastic_requeue() {
	local longest_run=500 from how
	for how in requeue preempt lose; do
		begin a alice login bash $here/elastic-requeue.sh $image $how
		timeout=200 says a 'ready to move from'
		[[ $failed == no ]] || return
		from=$(sed -n 's/^ready to move from //p' "$out/a")
		case $how in
		requeue)
			"$bed" run ctl scontrol update nodename="$from" state=drain reason=test
			"$bed" run ctl scontrol requeue "$(as_alice squeue -h -o %A -S i | head -1)"
			;;
		preempt) begin b alice login srun -N1 -p high -w "$from" --mem=1500 sleep 30 ;;
		lose)
			"$bed" lose "$from"
			"$bed" run ctl scontrol update nodename="$from" state=down reason=test
			;;
		esac
		timeout=300 ends a 7
		for said in 'the pods count without a head' 'the pods are the same' 'the Service is the same' 'pods come and go' 'the job that waits is the same' 'no count is missing' 'the Service was always reached'; do
			says a "$said"
		done
		[[ $how != preempt ]] || ends b 0
		[[ $how != lose ]] || "$bed" start "$from"
		"$bed" run ctl scontrol update nodename="$from" state=resume 2>/dev/null # unless it is back by itself
	done
	swept "$from"
}

# Only one run at a time uses a folder, and invalid state is not restored.
state_refused() {
	local id
	submit a -N1 --state st -- sh -c 'kubectl get nodes; echo up; sleep 1000'
	says a up
	id=$(job)
	submit b -N1 --state st -- true
	ends b 78
	says b "job $id is using it"
	as_alice scancel "$id"
	ends a 143
	submit c -N1 --state st -- true
	ends c 0
	as_alice sh -c 'head -c 1000 st/cluster.state >x; cat x >st/cluster.state; rm x'
	submit d -N1 --state st -- true
	ends d 66
	says d 'it is damaged'
	as_alice chmod 755 st
	submit e -N1 --state st -- true
	ends e 78
	says e 'chmod go-rwx'
	as_alice sh -c 'chmod 700 st; rm -r st .config *.out'
	begin f alice login berth submit -N3 --ha --state st -- true
	ends f 64
}

# A preempted job has the grace time of its partition, and is requeued.
preempted() {
	submit a -N3 --requeue --open-mode=append -p low --state st --image $image -f $here/slow-end.yaml
	says a started
	begin b alice login srun -N3 --mem=1500 -p high hostname
	timeout=100 ends b 0
	says a 'ended in order'
	poll 100 eval "[[ \$(grep -c '^started' $out/a) == 2 ]]" || fail "it does not come back: $(cat "$out/a")"
	as_alice scancel "$(job)"
	ends a 143
	as_alice rm -r st .config a.out
}

# A crash after the end of the cluster. The supervisor calls scontrol then, to requeue
# a preempted job, and this scontrol kills the supervisor.
crash_at_end() {
	local path=/srv/ends/dist/bin:/usr/bin:/bin:/usr/sbin:/sbin
	"$bed" run --user alice login sh -c 'mkdir fake && cat >fake/scontrol && chmod 755 fake/scontrol' <<-EOF
		#!/bin/sh
		[ "\$1" != requeue ] || { kill -SEGV \$PPID; exec sleep 1; }
		PATH=$path exec scontrol "\$@"
	EOF
	begin a alice login env PATH=/home/alice/fake:$path berth submit --wait --mem=1500 -o /home/alice/a.out \
		-N3 --requeue -p low --image $image -f $here/slow-end.yaml
	says a started
	begin b alice login srun -N3 --mem=1500 -p high hostname
	ends a 134 143
	says a 'ended in order'
	crashed a " after the end of the cluster: the workload's exit code is lost; "
	ends b 0
	as_alice rm -r fake a.out
}

# --grace gives the workload more time to end than Slurm's KillWait.
limit_grace() {
	timeout=200 limit=1
	submit a -N1 -t 1 --grace 20s --image $image -f $here/slow-end.yaml
	ends a 124
	says a "the job's time is over in 20s"
	says a 'ended in order'
	as_alice rm a.out
}

# Slurm's accounting has the resources that the workload used, and its exit code.
accounting() {
	local id
	begin a alice login srun -N1 --mem=1500 berth run -f $here/burn.yaml --image $image
	ends a 5
	says a took
	poll 60 accounted "$(sed -n 's/^took \(.*\) seconds$/\1/p' "$out/a")" || fail "sacct says: $("$bed" run --user alice login sacct -o JobID,State,ExitCode,MaxRSS,TotalCPU)"
}
accounted() { # SECONDS of processors, at least
	"$bed" run --user alice login sacct -n -P --noconvert -o JobID,State,ExitCode,MaxRSS,TotalCPU | awk -F'[|]' -v took="$1" '
		$1 ~ /\.0$/ && $2 == "FAILED" && $3 == "5:0" && $4 > 150e6 { split($5, time, "[:.]"); if (time[1] * 60 + time[2] >= took) found = 1 }
		END { exit !found }'
}
