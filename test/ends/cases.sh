# shellcheck shell=bash
# Every way in which a run can end. Cases of both modes come first.

success() {
	berth a -f $here/exit.yaml --image $image
	ends a 0
}

failure() {
	berth a --image $image -- sh -c "sed 's/value: \"0\"/value: \"7\"/' $here/exit.yaml | kubectl apply -f- && exit 9"
	ends a 9
}

# A command's leftovers end with the run, also those that left its session.
background() {
	berth a -- sh -c 'setsid sleep 1000 & (trap "" TERM; sleep 1001) & sleep 1002 & exit 5'
	ends a 5
}

command_is_asked_to_end() {
	berth a -- sh -c 'trap "echo command asked; exit 0" TERM; echo started; while :; do sleep 0.1; done'
	says a started
	signal TERM supervisor
	says a 'command asked'
	ends a 143
}

# kill -9 of one part. The first three end the run; what the user's command
# started ends too.
kill_one() { # PART CODE...
	local part=$1
	shift
	berth a -f $here/loop.yaml --image $image -- sh -c 'kubectl wait --for=condition=Ready --timeout=60s pod/loop; echo started; sleep 1000 & sleep 1001'
	says a started
	signal KILL "$part"
	ends a "$@"
}

# Where Slurm tracks processes by cgroup, it kills the rest of a step with its
# task: the janitor cannot do its work, and the case is like kill_all.
kill_supervisor() {
	kill_one supervisor 137
	[[ $mode/$PROCTRACK == step/cgroup ]] || return 0
	no_secret
	begin b alice n1 berth cleanup
	ends b 0
}
kill_janitor() {
	kill_one janitor 70
	says a 'sandbox ended'
}
kill_init() {
	kill_one init 70
	says a 'sandbox ended'
}
kill_keeper() {
	kill_one keeper 66 70
	says a 'watches over'
}

# All at once: what is left is a directory, and the next berth removes it.
kill_all() {
	berth a -f $here/loop.yaml --image $image -- sh -c 'kubectl wait --for=condition=Ready --timeout=60s pod/loop; echo started; exec sleep 1000'
	says a started
	signal KILL supervisor janitor init net keeper
	ends a 137
	no_secret
	if [[ $mode == local ]]; then
		berth b -- true
	else
		begin b alice n1 berth cleanup
	fi
	ends b 0
}

no_secret() {
	local found
	found=$(node grep -rlE 'PRIVATE KEY|client-key-data|open-sesame-4711|b3Blbi1zZXNhbWUtNDcxM' /tmp /var/tmp /dev/shm /run 2>/dev/null)
	[[ -z $found ]] || fail "secrets are left: $found"
}

# A role that dies is started again, pods stay, the API works again.
restart() {
	local role before uid
	berth a -f $here/loop.yaml --image $image -- sleep 1000
	poll 60 running || fail "the pod does not run: $(tail -n 12 "$out/a")"
	before=$(identity)
	for role in net dns containerd node control; do
		signal KILL $role
		says a "$role ended"
		poll 30 kubectl get --raw=/readyz >/dev/null 2>&1 || fail "no API after the restart of $role"
		poll 30 works || fail "exec does not work after the restart of $role"
		[[ $(identity) == "$before" ]] || fail "the pod did not survive the restart of $role: $before, now $(identity)"
	done
	# A new pod can be started, and be asked to end.
	kubectl run second --image=busybox:1.37 --restart=Never -- true >/dev/null || fail "run a second pod"
	kubectl wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=30s pod/second >/dev/null || fail "the second pod does not run"
	signal TERM supervisor
	ends a 143
}
running() { [[ $(kubectl get pod loop -o 'jsonpath={.status.phase}' 2>/dev/null) == Running ]]; }
identity() { poll 20 ask_identity; }
ask_identity() { kubectl get pod loop -o 'jsonpath={.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}' 2>/dev/null; }
works() { [[ $(kubectl exec loop -- echo works 2>/dev/null) == works ]]; }

# The output of a workload has every line once, whatever breaks off underway.
followed_over_restarts() {
	local role
	berth a -f $here/count.yaml --image $image
	says a 'number 5'
	for role in control node containerd; do
		signal KILL $role
		says a "$role ended"
		poll 30 kubectl get --raw=/readyz >/dev/null 2>&1 || fail "no API after the restart of $role"
	done
	ends a 0
	diff <(grep '^number ' "$out/a") <(seq -f 'number %g' 100) >"$out/difference" ||
		fail "lines are missing or repeated: $(head -n 5 "$out/difference")"
}

# A role that dies again and again ends the run, with the reason.
storm() {
	local i
	berth a -- sleep 1000
	poll 60 kubectl get --raw=/readyz >/dev/null 2>&1
	for i in 1 2 3 4; do
		poll 30 eval '[[ -n $(parts dns) ]]'
		signal KILL dns
		[[ $i == 4 ]] || poll 30 eval "[[ \$(grep -c 'dns ended' $out/a) == $i ]]"
	done
	says a 'after 3 restarts'
	ends a 70
}

# What is stopped is continued; nothing is restarted for it.
stop_each() {
	local part
	berth a -f $here/loop.yaml --image $image -- sleep 1000
	poll 60 running
	for part in net dns containerd node control init janitor keeper; do
		signal STOP $part
		poll 20 awake $part || fail "$part stays stopped"
	done
	poll 20 works || fail "exec does not work after the stops"
	never_says a 'starting it again'
	signal STOP janitor init
	signal TERM supervisor
	ends a 143
}
awake() { ! node grep -q '^State:.T' "/proc/$(parts "$1")/status"; }

stop_supervisor() {
	berth a -f $here/exit.yaml --image $image
	poll 30 eval '[[ -n $(parts supervisor) ]]'
	signal STOP supervisor
	poll 30 eval 'node grep -q "^State:.T" /proc/$(parts supervisor)/status'
	signal CONT supervisor
	ends a 0
}

# The death of a shim or of pause ends its pod, not the run: the Job's pod is
# counted as failed.
kill_shim() { kill_in_pod shim; }
kill_pause() { kill_in_pod pause; }
kill_in_pod() {
	berth a -f $here/loop.yaml --image $image
	says a started
	signal KILL "$1"
	patience=90 ends a 137 1 143 255
}

pod_is_asked_to_end() {
	berth a -f $here/loop.yaml --image $image
	says a started
	signal "${1:-TERM}" supervisor
	says a 'ended in order'
	ends a "${2:-143}"
}
hangup() { pod_is_asked_to_end HUP 129; }
interrupt() { pod_is_asked_to_end INT 130; }

# A second signal is obeyed at once.
second_signal() {
	berth a -f $here/stubborn.yaml --image $image
	says a started
	signal INT supervisor
	says a 'a second signal'
	sleep 1.2
	signal INT supervisor
	ends a 130
}

# Ctrl-C at a terminal reaches every process in the foreground.
terminal() {
	begin a alice n1 script -qec "berth run -f $here/loop.yaml --image $image -- sh -c 'kubectl wait --for=condition=Ready pod/loop --timeout=60s; echo up; sleep 1000'" /dev/null
	says a up
	node sh -c "kill -INT \$(pgrep -t \$(ps -o tty= -p $(parts keeper)))"
	ends a 130
}

# The pipe that takes the output closes.
closed_pipe() {
	begin a alice n1 bash -c "berth run -f $here/chatty.yaml --image $image | head -n 1; exit \${PIPESTATUS[0]}"
	ends a 141
	says a started
}

# nohup's run outlives a hangup, and so does its command.
ignored_hangup() {
	begin a alice n1 nohup berth run -- sh -c 'echo started; sleep 3; exit 6'
	says a started
	node sh -c "kill -HUP $(parts supervisor keeper | tr '\n' ' ') \$(pgrep -f '^sleep 3')"
	ends a 6
}

# A signal that comes while the cluster is still being started.
early() {
	local i
	for i in 0.1 0.3 0.5 0.8 1.2; do
		begin a$i alice n1 timeout -s TERM $i berth run -f $here/loop.yaml --image $image
		ends a$i 124
	done
}

together() {
	local user
	begin a alice n1 berth run -f $here/exit.yaml --image $image -- sh -c 'kubectl wait --for=condition=complete --timeout=90s job/exit'
	begin b alice n1 berth run -f $here/exit.yaml --image $image -- sh -c 'kubectl wait --for=condition=complete --timeout=90s job/exit; exit 3'
	begin c bob n1 berth run -f $here/exit.yaml --image $image
	ends a 0
	ends b 3
	ends c 0
}

# One that is killed leaves the other alone.
together_apart() {
	begin a alice n1 berth run -f $here/loop.yaml --image $image
	says a started
	local first
	first=$(parts supervisor)
	begin b bob n1 berth run -f $here/loop.yaml --image $image
	says b started
	node kill -KILL "$first"
	ends a 137
	begin c alice n1 berth run -f $here/exit.yaml --image $image
	ends c 0
	signal TERM supervisor
	says b 'ended in order'
	ends b 143
}

no_new_privs() {
	begin a alice n1 setpriv --no-new-privs /srv/ends/dist/bin/berth run -f $here/loop.yaml --image $image
	says a 'one user id only'
	says a started
	signal TERM supervisor
	ends a 143
}

# From here on: only inside of a job.

scancel() { # OPTION...
	berth a -f $here/loop.yaml --image $image
	says a started
	"$bed" run --user alice login scancel "$@" "$(job)"
	ends a 143
	says a 'ended in order'
}
scancel_full() { scancel -f; }
# To Slurm this is no other scancel: SIGTERM and KillWait come first.
scancel_kill() { scancel -s KILL; }

# The step of a job is killed at once. What is on disk stays until the next
# berth, or an epilog, comes.
step_kill() { # PART: is stopped before
	berth a -f $here/loop.yaml --image $image
	says a started
	[[ $# == 0 ]] || signal STOP "$1"
	"$bed" run --user alice login scancel -s KILL "$(job).0"
	ends a 137
	no_secret
	begin b alice n1 berth cleanup
	ends b 0
}
stopped_step_kill() { step_kill supervisor; }
stopped_scancel() {
	berth a -f $here/loop.yaml --image $image
	says a started
	signal STOP supervisor
	"$bed" run --user alice login scancel "$(job)"
	ends a 143
}

# Ctrl-C at srun, twice within a second: srun has the step killed right after it
# has passed the signal on.
srun_interrupt() {
	local srun
	berth a -f $here/loop.yaml --image $image
	says a started
	srun=$("$bed" run login pgrep -of '^srun ')
	"$bed" run login kill -INT "$srun"
	says a 'one more within 1 sec'
	"$bed" run login kill -INT "$srun"
	ends a 130 137
	no_secret
	begin b alice n1 berth cleanup
	ends b 0
}

# Where the step has a terminal, Ctrl-C is typed into that.
srun_terminal() {
	begin a alice login bash -c "mkfifo keys; script -qec 'srun --pty -N1 --mem=1500 berth run -f $here/loop.yaml --image $image' /dev/null <>keys; code=\$?; rm keys; exit \$code"
	says a started
	"$bed" run --user alice login sh -c 'printf "\003" >keys'
	ends a 130
	says a 'ended in order'
}

# The end of the batch script is the end of its step, whatever that still does.
script_scancel() {
	begin a alice login sbatch -W -o /home/alice/script.out --mem=1500 --wrap "env PATH=$PATH /srv/ends/dist/bin/berth run -f $here/loop.yaml --image $image"
	poll 60 node grep -qs started /home/alice/script.out || fail "not started: $(node cat /home/alice/script.out)"
	"$bed" run --user alice login scancel "$(job)"
	ends a 0 1 15 143 137
	node rm /home/alice/script.out
	no_secret
	begin b alice n1 berth cleanup
	ends b 0
}

# A job that is suspended and resumed goes on, with nothing started again.
suspend() {
	local id
	berth a -f $here/loop.yaml --image $image
	says a started
	id=$(job)
	"$bed" run ctl scontrol suspend "$id"
	poll 20 suspended || fail "the supervisor is not suspended"
	# Longer than what is stopped needs to be found, were anybody awake.
	sleep 2.5
	suspended || fail "the supervisor does not stay suspended"
	"$bed" run ctl scontrol resume "$id"
	poll 20 works || fail "exec does not work after the suspension"
	never_says a 'starting it again'
	signal TERM supervisor
	says a 'ended in order'
	ends a 143
}
# What cgroups freeze is in state D.
suspended() { node grep -q '^State:.[TD]' "/proc/$(parts supervisor)/status"; }

# Without its slurmstepd Slurm can end nothing of a step.
lost_stepd() {
	berth a -f $here/loop.yaml --image $image
	says a started
	node kill -KILL "$(node pgrep -f "^slurmstepd: .$(job)[.]0.")"
	poll 30 no_parts || fail "the run goes on: $(node ps -u alice -o pid,args)"
	# Nor does its srun learn of an end.
	"$bed" run --user alice login scancel "$(job)"
	"$bed" run login sh -c 'kill -KILL $(pgrep "^srun")'
	ends a 137
}
no_parts() { [[ -z $(parts supervisor janitor init net control) ]]; }

time_limit() {
	# Slurm counts limits in minutes, and looks at them every now and then.
	patience=150
	begin a alice login sbatch -W -o /home/alice/limit.out --time=1 --mem=1500 --wrap "srun env PATH=$PATH /srv/ends/dist/bin/berth run -f $here/loop.yaml --image $image"
	ends a 0 1 15 143 124 137
	node cat /home/alice/limit.out >"$out/a"
	says a started
	[[ $("$bed" run ctl scontrol -o show job "$(last_job)") == *JobState=TIMEOUT* ]] || fail "the job's state is not TIMEOUT"
	node rm /home/alice/limit.out
	begin b alice n1 berth cleanup
	ends b 0
}
last_job() { "$bed" run ctl scontrol -o show job | grep -o 'JobId=[0-9]*' | tail -n 1 | cut -d= -f2; }

batch_scancel() {
	begin a alice login sbatch -W -o /home/alice/batch.out --mem=1500 --wrap "srun env PATH=$PATH /srv/ends/dist/bin/berth run -f $here/loop.yaml --image $image"
	poll 60 node grep -qs started /home/alice/batch.out || fail "not started: $(node cat /home/alice/batch.out)"
	"$bed" run --user alice login scancel "$(job)"
	ends a 0 1 15 143 137
	node cat /home/alice/batch.out >"$out/a"
	node rm /home/alice/batch.out
	no_secret
	begin b alice n1 berth cleanup
	ends b 0
}

extra_tasks() {
	begin a alice login srun -N1 -n2 --mem=1500 berth run -f $here/exit.yaml --image $image
	ends a 0
	[[ $(grep -c started "$out/a") == 1 ]] || fail "more than one task acts"
	begin b alice login srun -N1 -n2 --mem=1500 berth run -q -- false
	ends b 1
}
extra_tasks_scancel() {
	begin a alice login srun -N1 -n2 --mem=1500 berth run -f $here/loop.yaml --image $image
	says a started
	"$bed" run --user alice login scancel "$(job)"
	ends a 143 137
	says a 'ended in order'
}

# What was asked for counts, whoever enforces it.
memory_asked() {
	begin a alice login srun -N1 --mem=1400 berth run -q -- kubectl get nodes -o 'jsonpath={.items[0].status.capacity.memory}'
	ends a 0
	grep -qx 1400Mi "$out/a" || fail "not 1400 MiB: $(cat "$out/a")"
}

small_step() {
	begin a alice login sbatch -W -o /home/alice/small.out -n2 --mem=1500 --wrap "srun -n1 -c1 --exact env PATH=$PATH /srv/ends/dist/bin/berth run -- true"
	ends a 0
	node cat /home/alice/small.out >"$out/a"
	node rm /home/alice/small.out
	patience=1 says a 'this step may use only'
}

# What salloc starts is on the login host, which is no place for a cluster.
salloc() {
	begin a alice login salloc -N1 --mem=1500 /srv/ends/dist/bin/berth run --image $image -f $here/exit.yaml -- sh -c 'hostname; wc -c; exit 7'
	ends a 7
	grep -qx n1 "$out/a" || fail "not on the node: $(tail -n 12 "$out/a")"
	begin b alice login salloc -N1 --mem=1500 /srv/ends/dist/bin/berth run -f $here/loop.yaml --image $image
	says b started
	"$bed" run --user alice login scancel "$(job)"
	ends b 143 1 15
	says b 'ended in order'
}

# Only where cgroups limit the memory.
out_of_memory() {
	memory=900
	berth a -f $here/greedy.yaml --image $image
	says a started
	# The kernel kills the pod, not berth, which reports it.
	patience=90
	ends a 137 1
	says a 'job greedy failed'
}

# greeted NODE...: a pod of spread.yaml ran on each, as a says.
greeted() {
	local node
	for node in "$@"; do
		grep -q "hello from $node\$" "$out/a" || fail "no pod ran on $node: $(tail -n 12 "$out/a")"
	done
}

# Several nodes on one host, without and with Slurm.
siblings() {
	berth a --nodes-per-host 3 -f $here/spread.yaml --image $image
	ends a 0
	greeted n1 n1-2 n1-3
	berth b --nodes-per-host 2 -f $here/loop.yaml --image $image
	says b started
	signal INT supervisor
	ends b 130
	says b 'ended in order'
	berth c --nodes-per-host 2 -f $here/loop.yaml --image $image
	says c started
	"$bed" run n1 sh -c 'kill -KILL $(pgrep -o -f "^[^ ]*berth run ")'
	ends c 137
}

# On three nodes, with everything of a step's memory and processors.
span_berth() { # NAME ARGS...
	local name=$1
	shift
	begin "$name" alice login srun -N3 --mem=1500 berth run "$@"
}

span() {
	span_berth a -f $here/spread.yaml --image $image
	ends a 0
	greeted n1 n2 n3
	# The command runs once, with all nodes there.
	span_berth b -- sh -c 'kubectl get nodes -o name; exit 5'
	ends b 5
	[[ $(grep -c ^node/ "$out/b") == 3 ]] || fail "not three nodes, once: $(cat "$out/b")"
}

# An archive on the head's own disk reaches the others, also where one has
# another file of that name.
own_archive() {
	node cp "$image" /var/tmp/own.tar
	"$bed" run --user alice n2 sh -c 'echo something else >/var/tmp/own.tar'
	span_berth a -f $here/spread.yaml --image /var/tmp/own.tar
	ends a 0
	greeted n1 n2 n3
	for node in n1 n2; do "$bed" run "$node" rm /var/tmp/own.tar; done
}

# Pods of different nodes reach each other, by address and through a Service.
talk() {
	span_berth a --image $image -- bash $here/talk.sh
	ends a 0
	says a 'every pod reaches every pod'
}

# The same over TCP, which some firewalls leave.
talk_tcp() {
	span_berth a --carrier tcp --image $image -- bash $here/talk.sh
	ends a 0
	says a 'every pod reaches every pod'
}

# A firewall that drops UDP is found out.
talk_blocked() {
	local nft=/srv/ends/dist/libexec/berth/nft
	for node in n1 n2 n3; do
		"$bed" run $node $nft 'add table inet wall; add chain inet wall in { type filter hook input priority 0; }; add rule inet wall in udp dport 21000-28999 drop'
	done
	span_berth a --image $image -- bash $here/talk.sh
	ends a 0
	says a 'every pod reaches every pod'
	says a 'UDP does not get through'
	for node in n1 n2 n3; do "$bed" run $node $nft delete table inet wall; done
}

services() {
	span_berth a --image $image -- bash $here/services.sh
	patience=100 ends a 0
	says a 'everything reaches everything'
}

# A claim on a folder that all nodes see is written by all, and kept for the
# user and for the next run.
shared_volumes() {
	"$bed" run --user alice login mkdir shared
	span_berth a --shared-volumes /home/alice/shared -f $here/shared.yaml --image $image
	ends a 0
	[[ $("$bed" run --user alice login ls shared/default/results | xargs) == "n1 n2 n3" ]] || fail "not the files of all: $(cat "$out/a")"
	span_berth b --shared-volumes /home/alice/shared -f $here/shared.yaml --image $image
	ends b 0
	"$bed" run --user alice login rm -r shared
	span_berth c --shared-volumes /home/alice/shared -f $here/shared.yaml --image $image
	ends c 66
	says c 'shared volumes'
}

span_scancel() {
	span_berth a -f $here/loop.yaml --image $image
	says a started
	"$bed" run --user alice login scancel "$(job)"
	ends a 143
	says a 'ended in order'
}

# Two nodes on each of three hosts.
span_siblings() {
	span_berth a --nodes-per-host 2 -- sh -c 'kubectl get nodes -o name'
	ends a 0
	[[ $(grep -c ^node/ "$out/a") == 6 ]] || fail "not six nodes: $(cat "$out/a")"
}

# A batch script and the shell of salloc take all nodes of their job, also those
# of a heterogeneous one.
whole_job() {
	local count="$PATH:/srv/ends/dist/bin; berth run -- kubectl get nodes -o name"
	begin a alice login sbatch -W -o /home/alice/whole.out -N3 --mem=1500 --wrap "PATH=$count"
	ends a 0
	three_nodes a
	begin b alice login sbatch -W -o /home/alice/whole.out -N1 --mem=1500 : -N2 --mem=1400 /srv/ends/ends/whole.sh
	ends b 0
	three_nodes b
	begin c alice login salloc -N3 --mem=1500 berth run -- kubectl get nodes -o name
	ends c 0
	cp "$out/c" "$out/whole"
	count_nodes whole
}
three_nodes() { # NAME: in the output of the batch script
	node cat /home/alice/whole.out >"$out/whole"
	node rm /home/alice/whole.out
	count_nodes "$1"
}
count_nodes() {
	[[ $(grep -c ^node/ "$out/whole") == 3 ]] || fail "not three nodes, once: $(cat "$out/whole" "$out/$1")"
}

# What is wrong is said once, by the head, and ends all nodes at once.
span_mistakes() {
	span_berth a --node-wait 50s -f /nothing.yaml
	patience=20 ends a 66
	span_berth b --nonsense
	patience=20 ends b 64
	[[ $(grep -c '^berth: unknown' "$out/b") == 1 ]] || fail "not said once: $(cat "$out/b")"
	begin c alice login srun -N3 --mem=1500 sh -c '[ $SLURMD_NODENAME != n3 ] || exec sleep 5; exec berth run --node-wait 2s -- true'
	patience=20 ends c 69
	says c 'n3 did not come within 2s'
	begin d alice login srun -N3 --mem=1500 sh -c 'exec berth run --state-dir /nothing/$SLURMD_NODENAME -- true'
	patience=20 ends d 73
}

# The run goes on without a node whose processes died.
lose_worker() {
	span_berth a --image $image -- bash $here/move.sh n2
	says a 'pods on'
	kill_berth n2
	says a 'moved to'
	ends a 137 # srun's word for the task on n2
	says a 'lost node n2'
	swept n2
}
fail_fast() {
	span_berth a --fail-fast -f $here/loop.yaml --image $image
	says a started
	kill_berth n2
	ends a 69 137
	says a 'lost node n2'
	swept n2
}
# A node that is back after the network was gone takes part again.
partition() {
	span_berth a --image $image -- bash $here/move.sh n2 back
	says a 'pods on'
	"$bed" cut n2
	patience=40 says a 'moved to'
	"$bed" mend n2
	patience=40 says a 'node n2 is back'
	patience=60 ends a 0
	says a 'here again'
}
lose_head() {
	span_berth a -f $here/loop.yaml --image $image
	says a started
	kill_berth n1
	ends a 69 137
	says a 'lost node n1'
	swept n1
}
# swept NODE: where Slurm kills what is to clean up, the next berth does.
swept() {
	begin c alice "$1" berth cleanup
	ends c 0
}
kill_berth() { "$bed" run "$1" sh -c 'kill -KILL $(pgrep -f "^[^ ]*berth run ")'; }
