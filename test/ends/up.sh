# shellcheck shell=bash
# Persistent clusters (berth up) and the commands that use them.

# in_salloc NAME SCRIPT begins the script in the shell of an allocation of three
# nodes, on the login host.
in_salloc() {
	begin "$1" alice login salloc -N3 --mem=1500 bash -c "$2"
}

# batch NAME NODES SCRIPT begins the script as a batch job. When the job has ended, its
# output becomes the output of NAME.
batch() {
	begin "$1" alice login sh -c 'printf "#!/bin/bash\nPATH=$PATH\n%s\n" "$3" >"$1.sh"; sbatch -W -N"$2" --mem=1500 -o "$1.out" "$1.sh"; code=$?; cat "$1.out"; rm "$1.sh" "$1.out"; exit $code' sh "$1" "$2" "$3"
}

# Several runs on one cluster, in sequence and at once; every command finds it.
up_salloc() {
	local name
	in_salloc a "berth up || exit 90
		berth run --image $image -f $here/spread.yaml || exit 104
		berth run --image $here/exit.yaml -- true; [ \$? = 66 ] || exit 105
		cp $sif own.sif; for name in sif:own.sif own; do
			sed \"s/busybox:1.37/\$name/; s/hello/\$name/\" $here/spread.yaml | berth run -f - --image own=own.sif || exit 106
		done; rm own.sif
		berth up 2>&1 | grep -q 'was already running' || exit 91
		berth run -f $here/exit.yaml || exit 92
		berth run -f $here/exit.yaml || exit 93
		berth kubectl get jobs 2>&1 | grep -q 'No resources' || exit 94
		berth run --keep -f $here/exit.yaml && berth kubectl get job exit || exit 95
		berth run -f $here/exit.yaml; [ \$? = 65 ] || exit 96
		berth kubectl delete job exit
		berth run -f $here/exit.yaml & one=\$!; berth run -- sh -c 'hostname; exit 3' & wait \$one; one=\$?; wait \$!; [ \$one/\$? = 0/3 ] || exit 97
		berth run --ha -- true; [ \$? = 64 ] || exit 98
		berth run -- sh -c 'wc -c; kubectl get nodes -o name' </etc/passwd
		berth status
		berth shell -- sh -c 'kubectl get ns default -o name; echo \$BERTH_JOB' || exit 99
		srun -N3 hostname || exit 100
		(eval \"\$(berth up --env)\" && kubectl get nodes && berth kubectl get nodes) || exit 101
		berth down; berth down; [ \$? = 69 ] || exit 102
		! squeue --noheader --steps -o %20j | grep berth-up || exit 103
		berth up && berth run -- kubectl get nodes -o name
		exit 7"
	timeout=200 ends a 7
	[[ $(grep -c ^node/ "$out/a") == 6 ]] || fail "not two lists of three nodes: $(cat "$out/a")"
	for name in hello own sif:own.sif; do
		[[ $(grep -o "] $name from n[123]" "$out/a" | sort -u | wc -l) == 3 ]] || fail "the image of $name is not on three nodes: $(cat "$out/a")"
	done
}

# In a batch script, also on one node; nothing is left at its end. The archive is only
# on the first node.
up_batch() {
	local nodes
	for nodes in 2 1; do
		batch a "$nodes" "berth up && cp $image /tmp/own.tar && berth run -f $here/spread.yaml --image /tmp/own.tar && rm /tmp/own.tar &&
			cp $sif /tmp/own.sif && sed \"s/busybox:1.37/own/; s/hello/copied/\" $here/spread.yaml | berth run -f - --image own=/tmp/own.sif && rm /tmp/own.sif &&
			berth run -f $here/exit.yaml && berth kubectl get nodes -o name
			eval \"\$(berth up --env)\"; kubectl get nodes -o name; berth run -- sh -c 'exit 6'"
		timeout=150 ends a 6
		[[ $(grep -c ^node/ "$out/a") == $((2 * nodes)) ]] || fail "not twice $nodes nodes: $(cat "$out/a")"
		[[ $(grep -o 'hello from n[123]' "$out/a" | sort -u | wc -l) == "$nodes" ]] || fail "the image is not on $nodes nodes: $(cat "$out/a")"
		[[ $(grep -o 'copied from n[123]' "$out/a" | sort -u | wc -l) == "$nodes" ]] || fail "the SIF file is not on $nodes nodes: $(cat "$out/a")"
	done
}

# One Ctrl-C ends a run in order, on the cluster of berth up and with its own cluster.
up_interrupt() {
	begin a alice login bash -c "mkfifo keys; script -qec 'salloc -N3 --mem=1500 bash $here/interrupted.sh $here $image' /dev/null <>keys; code=\$?; rm keys; exit \$code"
	says a started
	"$bed" run --user alice login sh -c 'printf "\003" >keys'
	says a 'used 130'
	[[ $(grep -c 'ended in order' "$out/a") == 1 ]] || fail "the pod was not asked to end: $(cat "$out/a")"
	poll 60 started_again || fail "no second run: $(cat "$out/a")"
	"$bed" run --user alice login sh -c 'printf "\003" >keys'
	ends a 0
	says a 'own 130'
	[[ $(grep -c 'ended in order' "$out/a") == 2 ]] || fail "the second pod was not asked to end: $(cat "$out/a")"
}
started_again() { [[ $(grep -c started "$out/a") == 2 ]]; }

# Pods end in order, in whichever way the allocation ends.
up_ends() {
	in_salloc a "berth up --image $image && berth kubectl apply -f $here/loop.yaml && berth kubectl wait --for=condition=Ready pod/loop && echo ready"
	says a ready
	ends a 0
	in_salloc b "berth up --image $image && berth kubectl apply -f $here/loop.yaml && berth kubectl wait --for=condition=Ready pod/loop && echo ready && berth logs -f loop"
	says b started
	"$bed" run --user alice login scancel "$(job)"
	ends b 143 15 1 0 69 137
	says b 'ended in order'
	batch c 2 "berth up --image $image && berth kubectl apply -f $here/loop.yaml && berth kubectl wait --for=condition=Ready pod/loop && berth logs -f loop"
	poll 60 "$bed" run login grep -qs started /home/alice/c.out || fail "not started: $(cat "$out/c")"
	"$bed" run --user alice login scancel "$(job)"
	ends c 143 15 1 0 69 137
	begin d alice n1 berth cleanup # the parent in the batch step is killed at once
	ends d 0
}

# An interrupted start, and two starts at once.
up_starts() {
	in_salloc a "(berth up; echo first \$?) & (berth up; echo second \$?); wait; berth down"
	ends a 0
	says a 'first 0'
	says a 'second 0'
	[[ $(grep -c 'control plane ready' "$out/a") == 1 ]] || fail "two clusters: $(cat "$out/a")"
	in_salloc b "timeout -s INT 0.4 berth up; echo code \$?; berth down; echo down \$?"
	ends b 0
	says b 'code 124'
	in_salloc c "berth up --state-dir /nowhere; echo code \$?"
	ends c 0
	says c 'code 73'
	in_salloc d "srun berth up; echo code \$?; berth run -- true; echo run \$?"
	ends d 0
	says d 'code 64'
	says d 'run 0'
	# berth down from the login host, in a heterogeneous job.
	begin e alice login salloc -N1 --mem=1000 : -N1 --mem=1000 bash -c 'berth up && echo stands && until [ -e ended ]; do sleep 0.1; done; rm ended'
	says e stands
	begin f alice login berth down "$(job | sed s/+.*//)"
	ends f 0
	says f 'has ended'
	"$bed" run --user alice login touch ended
	ends e 0
}

# With three control planes the cluster outlives its first node, and runs continue on
# the node that takes over.
up_lose_head() {
	begin a alice login salloc --no-kill -N3 --mem=1500 bash -c "berth up --ha --slurm-jobs || exit 90
		job() { berth kubectl wait --timeout=60s --for=jsonpath={.status.state}=\$2 slurmjob/\$1; }
		berth kubectl create -f $here/kept.yaml && job kept RUNNING || exit 95
		berth run -- hostname
		until [ \"\$(squeue -h -j \$SLURM_JOB_ID -o %N)\" = 'n[2-3]' ]; do sleep 0.2; done
		berth run -- hostname || exit 94
		touch lost; job kept COMPLETED || exit 96
		sed 's/kept/next/' $here/kept.yaml | berth kubectl create -f - && job next COMPLETED && berth kubectl wait --timeout=60s --for=create pod/next-job && berth kubectl wait --timeout=60s --for=jsonpath={.status.phase}=Succeeded pod/next-job || exit 97
		[ \"\$(cat ran)\" = \$'default.kept\ndefault.next' ] && rm lost ran || exit 98
		berth run -f $here/exit.yaml --image $image || exit 91
		berth down || exit 92
		! squeue --noheader --steps -o %20j | grep berth-up || exit 93
		exit 7"
	says a n1
	"$bed" run ctl scontrol update nodename=n1 state=down reason=ends
	timeout=200 ends a 7
	says a 'which led the run, is lost'
	says a 'waiting until another one leads it'
	"$bed" run ctl scontrol update nodename=n1 state=resume 2>/dev/null
	swept n1
}

# A node is lost while its pod has ten minutes to end after berth down. The end does not
# wait for that pod.
up_lose_worker() {
	in_salloc a "berth up --image $image && berth kubectl apply -f $here/slow-spread.yaml &&
		berth kubectl wait --for=jsonpath={.status.ready}=3 --timeout=60s job/slow-spread && { berth down; echo down \$?; }"
	says a 'waiting for pods to end'
	"$bed" run n2 pkill -KILL -f '^[^ ]*berth up ' || fail 'there is no berth on n2'
	says a 'down 0'
	says a 'lost node n2'
	says a 'the workload ends without the node and its pods'
	ends a 0
	swept n2
}

# Without Slurm. Nothing is left after parts of the cluster are killed.
up_local() {
	begin a alice n1 sh -c "berth up --image $image && berth run -f $here/exit.yaml && berth up 2>&1 && berth ls &&
		{ script -qec 'berth run -f $here/exit.yaml' /dev/null >/tmp/term; grep -q started /tmp/term && ! grep containerd /tmp/term || echo spoilt; rm /tmp/term; } && berth run -- sh -c 'kubectl get nodes -o name; exit 4'; code=\$?; berth down; exit \$code"
	ends a 4
	says a 'was already running'
	says a node/
	never_says a spoilt
	# In a terminal, up and down write lines, and no escape sequences.
	begin d alice n1 sh -c "export TERM=xterm; script -qec 'stty cols 80 rows 24; berth up --nodes-per-host 2' /dev/null >/tmp/term && berth run -- kubectl get nodes -o name && berth kubectl get nodes -o name; code=\$?
		script -qec 'stty cols 80 rows 24; berth down' /dev/null >>/tmp/term || code=9; ! grep \"\$(printf '\\033')\" /tmp/term || echo spoilt; rm /tmp/term; exit \$code"
	ends d 0
	never_says d spoilt
	[[ $(grep -c ^node/ "$out/d") == 4 ]] || fail "not two lists of two nodes: $(cat "$out/d")"
	begin e alice n1 sh -c "berth up --image $image && berth kubectl apply -f $here/slow-end.yaml && berth kubectl wait --for=condition=Ready pod/slow && berth down"
	ends e 0
	says e 'waiting for pods to end'
	says e 'its pods (1) before it'
	begin b alice n1 sh -c "berth up && berth kubectl get nodes -o name"
	ends b 0
	node pkill -KILL -f '^berth up-parent'
	poll 20 no_up || fail "the cluster outlives its parent: $(node ps -u alice -o args)"
	begin c alice n1 sh -c "berth up && berth kubectl get nodes -o name"
	ends c 0
	node pkill -KILL -f '^berth up --foreground'
	poll 20 no_up || fail "something outlives the supervisor: $(node ps -u alice -o args)"
}
no_up() { [[ -z $(node pgrep -u alice) ]]; }

# Nodes of other jobs join the cluster, and leave it in every way.
up_elastic() {
	local longest_run=600
	begin a alice login salloc -N1 --mem=1500 bash $here/elastic.sh $image
	timeout=300 says a 'ready to lose one'
	"$bed" run n3 pkill -KILL -f '^[^ ]*berth join ' || fail 'there is no berth on n3'
	timeout=200 ends a 7
	for said in 'on n1 n2-[0-9]* n3-[0-9]*$' 'listeners 6$' 'job first$' 'left: n1 n3-[0-9]*$' 'lost: n1 n2-[0-9]*$' 'no pod is elsewhere$'; do
		grep -q "^$said" "$out/a" || fail "no '$said': $(cat "$out/a")"
	done
	swept n3
}

# Pods that do not fit bring nodes, and nodes without pods leave.
elastic_pods() {
	local longest_run=600 said
	begin a alice login salloc -N1 --mem=1500 bash $here/elastic-pods.sh $image
	timeout=400 ends a 7
	for said in 'on n1$' 'more: n1 n[23]-PILOT$' 'jobs 1$' 'job PILOT brings a node$' 'claim: 0 jobs$' 'Slurm refuses the job of a node for it: ' \
		'one waits$' 'seats 0 of 2 are free$' 'pilot running on n2$' 'pilot pending (Resources' 'fewer: .*n2-PILOT$' 'no job is left$'; do
		grep -q "^$said" "$out/a" || fail "no '$said': $(cat "$out/a")"
	done
	never_says a 'no pilot yet'
}

# Nodes that pods have brought leave before the time limit of their job, and without pods. They come
# back for a webhook that all pods need.
elastic_leave() {
	local longest_run=600 said
	begin a alice login salloc -N1 --mem=1500 bash $here/elastic-leave.sh $image $web_image
	timeout=400 ends a 7
	for said in 'alone: kept on n1$' 'a minute: 1:00$' 'idle: the pod of a DaemonSet keeps no node$' 'time limit: JobState=COMPLETED ExitCode=0:0$' \
		'the budget was heeded first$' 'the pod is on another node$' 'the webhook is gone$' 'another job brought the webhook back$'; do
		grep -q "^$said" "$out/a" || fail "no '$said': $(cat "$out/a")"
	done
}

# The loop that submits jobs for pods is killed at three moments. No job is lost, and none is
# submitted twice. When the head is killed, the job that waits is cancelled.
elastic_killed() {
	local longest_run=600 moment
	begin a alice login salloc -N1 --mem=1500 bash $here/elastic-killed.sh $image
	timeout=300 says a 'ready to lose the head'
	"$bed" run n1 pkill -KILL -f '^[^ ]*berth up --foreground' || fail 'there is no berth on n1'
	timeout=100 ends a 7
	swept n1
	for moment in held stored released; do says a "$moment: 1 submitted, 1 in the queue, 1 records"; done
	[[ $(grep -c 'elastic ended: .*; starting it again' "$out/a") == 3 ]] || fail "the loop was not killed three times: $(cat "$out/a")"
}

# Pods bring nodes with the GPUs that they request.
elastic_gpus() {
	begin a alice login salloc -N1 --mem=1500 bash $here/elastic-gpus.sh $image
	timeout=300 ends a 7
	says a 'one: gres:gpu:1, 1 on its node, sees 1'
	says a 'two: gres:gpu:2, 2 on its node, sees 2'
}

# Limits of Slurm keep jobs for nodes from the queue, or in it, and go again.
elastic_limits() {
	local longest_run=600 limit
	"$bed" run ctl sacctmgr -i add account lab >/dev/null && "$bed" run ctl sacctmgr -i add user alice account=lab >/dev/null || fail 'no account'
	poll 20 associated 'UserName=alice(' || fail 'slurmctld does not know the account'
	begin a alice login salloc -N1 --mem=1500 bash $here/elastic-limits.sh $image
	for limit in submit run down inactive; do
		timeout=200 says a "set $limit"
		limit_jobs $limit
		as_alice touch set-$limit
		timeout=200 says a "$limit: $([[ $limit == [rd]* ]] && echo 1 || echo 0) in the queue"
		lift_limit $limit
		as_alice touch lifted-$limit
		timeout=200 says a "$limit: recovered"
		[[ $failed == no ]] || return
	done
	timeout=200 ends a 7
	says a 'time: 0 in the queue'
	says a 'time: the other pod has run'
}
limit_jobs() {
	case $1 in
	submit) "$bed" run ctl sacctmgr -i modify user alice set maxsubmitjobs=1 >/dev/null && poll 20 associated 'MaxSubmitJobs=1(' ;;
	run) "$bed" run ctl sacctmgr -i modify user alice set maxjobs=1 >/dev/null && poll 20 associated 'MaxJobs=1(' ;;
	*) "$bed" run ctl scontrol update partitionname=main state="$1" ;;
	esac || fail "set the limit $1"
}
lift_limit() {
	case $1 in
	submit) "$bed" run ctl sacctmgr -i modify user alice set maxsubmitjobs=-1 >/dev/null ;;
	run) "$bed" run ctl sacctmgr -i modify user alice set maxjobs=-1 >/dev/null ;;
	*) "$bed" run ctl scontrol update partitionname=main state=up ;;
	esac || fail "lift the limit $1"
}
associated() { "$bed" run ctl scontrol show assoc_mgr users=alice flags=assoc | grep -qF "$1"; }

# Unchanged examples of KNoC, HPK and slurm-bridge get the nodes that they ask for.
elastic_dialects() {
	local longest_run=900 said
	begin a alice login salloc -N1 --mem=1500 bash $here/elastic-dialects.sh $image
	timeout=800 ends a 7
	for said in 'KNoC: {"beta.kubernetes.io/os":"linux"}$' 'HPK and KNoC: aliens$' 'pod: one job of 1 1:00$' 'jobs: 3 1$' 'pod group: 2 nodes$' \
		'JobSet single: 1 Succeeded$' 'JobSet coordinator: 5 Succeeded$' 'LeaderWorkerSet: jobs of 3 3 nodes$' 'told: Pending$'; do
		grep -q "^$said" "$out/a" || fail "no '$said': $(cat "$out/a")"
	done
}
