# shellcheck shell=bash
# Cases: every way to end a run. Cases that run with and without Slurm come first.

success() {
	berth a -f $here/exit.yaml --image $image
	ends a 0
}

failure() {
	berth a --image $image -- sh -c "sed 's/value: \"0\"/value: \"7\"/' $here/exit.yaml | kubectl apply -f- && exit 9"
	ends a 9
}

# Processes that a command leaves behind end with the run, even in other sessions.
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

# kill_one kills one part with SIGKILL: the supervisor, the janitor, init or the parent.
# The run ends, including processes that the user's command started.
kill_one() { # PART CODE...
	local part=$1
	shift
	berth a -f $here/loop.yaml --image $image -- sh -c 'kubectl wait --for=condition=Ready --timeout=60s pod/loop; echo started; sleep 1000 & sleep 1001'
	says a started
	signal KILL "$part"
	ends a "$@"
}

# With proctrack/cgroup, Slurm kills the rest of a step when its task ends. So the
# janitor cannot clean up, and the case is like kill_all.
kill_supervisor() {
	kill_one supervisor 137
	[[ $mode/$PROCTRACK == step/cgroup ]] || return 0
	no_secret
	begin b alice n1 berth cleanup
	ends b 0
}
# A crash is reported in one sentence, and the exit status is SIGABRT.
crash_supervisor() {
	berth a -f $here/loop.yaml --image $image -- sh -c 'kubectl wait --for=condition=Ready --timeout=60s pod/loop; echo started; exec sleep 1001'
	says a started
	signal SEGV supervisor
	ends a 134
	crashed a ', and the cluster has ended with it: '
	[[ $mode/$PROCTRACK == step/cgroup ]] || return 0
	begin b alice n1 berth cleanup
	ends b 0
}

# A crash before the sandbox exists, while the run waits for its manifest.
crash_early() {
	node mkfifo -m 666 /var/tmp/manifest
	berth a -f /var/tmp/manifest
	poll 20 node pgrep -f '^berth crash-reporter' >/dev/null || fail 'there is no reporter'
	signal SEGV supervisor
	ends a 134
	crashed a ' before it started the workload; '
	node rm /var/tmp/manifest
}

crashed() { # NAME TEXT
	says "$1" 'has crashed (SIGSEGV: segmentation violation)'"$2"
	[[ -z $(grep -v '^\(berth: \|srun: \|slurmstepd: \)' "$out/$1" | grep -E 'goroutine|^[[:space:]]|^PC=|^(rip|rsp) ') ]] || fail "stacks: $(tail -n 20 "$out/$1")"
}

kill_janitor() {
	kill_one janitor 70
	says a 'sandbox ended'
}
kill_init() {
	kill_one init 70
	says a 'sandbox ended'
}
kill_parent() {
	kill_one parent 66 70
	says a 'the process that watched it was killed'
}

# All parts are killed at once. Only a directory is left, and the next berth removes
# it.
kill_all() {
	berth a -f $here/loop.yaml --image $image -- sh -c 'kubectl wait --for=condition=Ready --timeout=60s pod/loop; echo started; exec sleep 1000'
	says a started
	signal KILL supervisor janitor init net parent
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

# A role that dies is restarted, pods keep running, and the API works again.
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
	# A new pod can be started and ended.
	kubectl run second --image=busybox:1.37 --restart=Never -- true >/dev/null || fail "run a second pod"
	kubectl wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=30s pod/second >/dev/null || fail "the second pod does not run"
	signal TERM supervisor
	ends a 143
}
running() { [[ $(kubectl get pod loop -o 'jsonpath={.status.phase}' 2>/dev/null) == Running ]]; }
identity() { poll 20 ask_identity; }
ask_identity() { kubectl get pod loop -o 'jsonpath={.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}' 2>/dev/null; }
works() { [[ $(kubectl exec loop -- echo works 2>/dev/null) == works ]]; }

# The output has every line of the workload once, whichever role dies meanwhile.
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

# The process that follows may end three times, and nothing is lost or repeated. The
# fourth time ends the run.
kill_follower() {
	local i lines
	berth a -f $here/numbers.yaml --image $image
	says a 'number 5'
	for i in 1 2 3; do
		signal KILL follower
		poll 30 eval "[[ \$(grep -c 'starting it again' $out/a) == $i ]]" || fail "the output is not followed again: $(tail -n 12 "$out/a")"
		lines=$(numbers)
		poll 30 eval "((\$(numbers) > $lines))" || fail "no output follows: $(tail -n 12 "$out/a")"
	done
	signal KILL follower
	ends a 70
	says a 'follow the workload: ended: signal: killed, 4 times; what its containers write from now on is lost'
	diff <(grep '^number ' "$out/a") <(seq -f 'number %g' "$(numbers)") >"$out/difference" ||
		fail "lines are missing or repeated: $(head -n 5 "$out/difference")"
}
numbers() { grep -c '^number ' "$out/a"; }

# Readers of a pod's root file system wait while the role that serves it restarts.
restart_layers() {
	local before i
	berth a --snapshotter erofs -f $here/loop.yaml --image $image -- sleep 1000
	poll 60 running || fail "the pod does not run: $(tail -n 12 "$out/a")"
	before=$(identity)
	for i in 1 2 3; do
		signal KILL layers
		poll 30 eval "[[ \$(grep -c 'layers ended' $out/a) == $i ]]" || fail "layers is not started again"
		poll 30 works || fail "exec does not work after the restart of layers"
	done
	signal STOP layers
	poll 20 awake layers || fail "layers stays stopped"
	kubectl exec loop -- sh -c 'cat /bin/busybox >/scratch/copy && cmp /bin/busybox /scratch/copy' >/dev/null || fail "the root of the pod cannot be read"
	# A restarted containerd knows the mounts of its predecessor.
	signal KILL containerd
	says a 'containerd ended'
	kubectl run second --image=busybox:1.37 --restart=Never -- true >/dev/null || fail "run a second pod"
	poll 60 eval '[[ $(kubectl get pod second -o "jsonpath={.status.phase}") == Succeeded ]]' || fail "the second pod does not run"
	[[ $(identity) == "$before" ]] || fail "the pod did not survive: $before, now $(identity)"
	signal TERM supervisor
	ends a 143
}

# If nobody serves a root file system any more, its readers get an error; otherwise
# not even SIGKILL would end them.
lose_layers() {
	local i
	berth a --snapshotter erofs -f $here/loop.yaml --image $image
	says a started
	for i in 1 2 3 4; do
		poll 30 eval '[[ -n $(parts layers) ]]'
		signal KILL layers
		[[ $i == 4 ]] || poll 30 eval "[[ \$(grep -c 'layers ended' $out/a) == $i ]]"
	done
	says a 'after 3 restarts'
	ends a 70
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

# A process stopped by a signal is continued, and nothing is restarted.
stop_each() {
	local some part
	berth a -f $here/loop.yaml --image $image -- sleep 1000
	poll 60 running
	# Several at once, as each is checked every two seconds: the roles, then their
	# supervisors.
	for some in "net dns containerd node control shim" "init janitor parent"; do
		# shellcheck disable=SC2086
		signal STOP $some
		for part in $some; do poll 20 awake $part || fail "$part stays stopped"; done
	done
	poll 20 works || fail "exec does not work after the stops"
	never_says a 'starting it again'
	signal STOP janitor init nets
	signal TERM supervisor
	ends a 143
}
awake() { ! node grep -q '^State:.T' "/proc/$(parts "$1")/status"; }

# A shim that is stopped while it makes its pod is continued, and the pod is made. On a busy
# machine the first processes of all shims of a run may end before they are seen, so runs
# follow until one was stopped. None of the runs may fail.
stop_new_shims() {
	local stopper run
	node touch /run/stops
	node bash $here/stop-shims.sh >"$out/stopped" &
	stopper=$!
	for run in {1..8}; do
		berth a -f $here/several.yaml --image $image
		timeout=150 ends a 0
		[[ $(grep -c '[]] ended$' "$out/a") == 6 ]] || fail "not six pods in run $run: $(cat "$out/a")"
		[[ $failed == no ]] && ! stopped_in_time || break
	done
	node rm /run/stops
	wait $stopper
	stopped_in_time || fail "not stopped in time: $(xargs <"$out/stopped")"
}
# stopped_in_time reports whether a shim's first process and a server without a child were
# stopped. A server with a child has already begun with the sandbox of its pod.
stopped_in_time() { grep -qx first "$out/stopped" && grep -qx server "$out/stopped"; }

stop_supervisor() {
	local supervisor
	berth a -f $here/exit.yaml --image $image
	poll 30 eval '[[ -n $(parts supervisor) ]]'
	# A process that berth has just forked has the same arguments until it executes its program.
	supervisor=$(node pgrep -o -f '^[^ ]*berth run ')
	node kill -STOP "$supervisor" || fail "stop the supervisor"
	poll 30 node grep -q '^State:.T' "/proc/$supervisor/status"
	node kill -CONT "$supervisor" || fail "continue the supervisor"
	ends a 0
}

# When a shim or a pause container dies, only its pod ends, not the run. The Job
# counts the pod as failed.
kill_shim() { kill_in_pod shim; }
kill_pause() { kill_in_pod pause; }
kill_in_pod() {
	berth a -f $here/loop.yaml --image $image
	says a started
	signal KILL "$1"
	timeout=90 ends a 137 1 143 255
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

# A second signal ends the run at once. One shell sends both, because the second one has
# to come between the second that both count as one and the end of the grace time of 2 s.
second_signal() {
	berth a -f $here/stubborn.yaml --image $image
	says a started
	node sh -c 'kill -INT "$0"; sleep 1.2; kill -INT "$0"' "$(parts supervisor)" || fail 'the second signal came too late'
	says a 'a second signal'
	ends a 130
}

# Ctrl-C at a terminal reaches every process in the foreground.
terminal() {
	begin a alice n1 script -qec "berth run -f $here/loop.yaml --image $image -- sh -c 'kubectl wait --for=condition=Ready pod/loop --timeout=60s; echo up; sleep 1000'" /dev/null
	says a up
	node sh -c "kill -INT \$(pgrep -t \$(ps -o tty= -p $(parts parent)))"
	ends a 130
}

# The reader of the output closes its pipe.
closed_pipe() {
	begin a alice n1 bash -c "berth run -f $here/chatty.yaml --image $image | head -n 1; exit \${PIPESTATUS[0]}"
	ends a 141
	says a started
}

# Nobody reads berth's messages, and their pipe is full. A signal ends the run in order.
unread_messages() {
	local pipe=/tmp/unread
	begin a alice n1 bash -c "mkfifo $pipe; exec 4<>$pipe; dd if=/dev/zero of=$pipe oflag=nonblock bs=4k 2>&-; rm $pipe; berth run -f $here/loop.yaml --image $image 2>&4"
	says a started
	signal TERM supervisor
	says a 'ended in order'
	ends a 143
}

# A run under nohup and its command outlive a hangup.
ignored_hangup() {
	begin a alice n1 nohup berth run -- sh -c 'echo started; sleep 3; exit 6'
	says a started
	node sh -c "kill -HUP $(parts supervisor parent | tr '\n' ' ') \$(pgrep -f '^sleep 3')"
	ends a 6
}

# Signals that reach every process of a job end no shim, runc or pause, not even at
# their first instruction. Processes of pods start with default signal handling.
storm_of_signals() {
	node sh -c 'touch /run/storm; while [ -e /run/storm ]; do for each in INT TERM HUP; do
		pkill -$each -f "containerd-shim-berth-v2|^/pause|cni/(bridge|portmap|loopback)|runc .* (kill|delete|state) "; done; done' &
	berth a -f $here/loop.yaml --image $image -- bash $here/storm.sh
	timeout=150 ends a 0
	node rm /run/storm
	wait $!
	says a 'no pod noticed'
}

# A signal interrupts the import of an archive that never ends.
interrupt_import() {
	begin a alice n1 /srv/ends/slow-import/bin/berth run -f $here/exit.yaml --image $image
	poll 60 node pgrep -f '^/bin/sleep 1004' >/dev/null || fail "nothing is imported: $(cat "$out/a")"
	signal TERM supervisor
	timeout=20 ends a 143
}

# A signal arrives while the cluster is being started.
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

# Killing one run does not affect the other.
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

# The following cases run only inside a job.

scancel() { # OPTION...
	berth a -f $here/loop.yaml --image $image
	says a started
	"$bed" run --user alice login scancel "$@" "$(job)"
	ends a 143
	says a 'ended in order'
}
scancel_full() { scancel -f; }
# Slurm treats this like any scancel: SIGTERM and KillWait come first.
scancel_kill() { scancel -s KILL; }

# A job without a time limit goes on after such a signal, and pods have their own grace
# periods (30 s). If it is cancelled meanwhile, they end within KillWait. Otherwise Slurm
# would kill the run, which leaves files.
scancel_in_grace() {
	local wait left
	# A signal within a second counts as the same one. On a very busy machine, both
	# are later.
	for wait in 0 1.2; do
		berth "a$wait" -f $here/stubborn.yaml --image $image
		says "a$wait" started
		scancel_job -s TERM
		says "a$wait" 'as long as its pods ask for'
		sleep "$wait"
		scancel_job
		ends "a$wait" 143
		left=$(check) || fail "left behind: $(head -n 20 <<<"$left")"
	done
}

# A run ends when the pods it has asked have ended, though other pods took their place.
replaced_pods() {
	berth a -f $here/replaced.yaml --image $image
	says a 'main] started'
	asks 0 'successfully rolled out' alice kubectl rollout status daemonset/daemon --timeout=60s
	scancel_job -s TERM
	says a 'ended in order'
	ends a 143
}
scancel_job() { "$bed" run --user alice login scancel "$@" "$(job)"; }

# A command has all the time of the job. A second signal ends it at once.
second_signal_of_command() {
	berth a -- sh -c 'trap "echo asked" TERM; echo started; while :; do sleep 0.1; done'
	says a started
	signal TERM supervisor
	says a asked
	sleep 1.2 # a signal within a second counts as the same one
	signal TERM supervisor
	ends a 143
}

# The step of a job is killed at once. Files on disk remain until the next berth or
# an epilog removes them.
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

# Two Ctrl-C at srun within a second: srun forwards the signal, and has the step
# killed right after that.
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

# On SIGTERM srun kills its step, but not the step's epilog, which can clean up.
srun_terminated() {
	"$bed" run --user alice login sh -c 'printf "#!/bin/sh\nexec /srv/ends/dist/bin/berth cleanup\n" >berth-epilog; chmod +x berth-epilog'
	begin a alice login env SLURM_TASK_EPILOG=/home/alice/berth-epilog srun -N1 --mem=1500 berth run -f $here/loop.yaml --image $image
	says a started
	"$bed" run login pkill -TERM -o -x srun
	ends a 137 143
	"$bed" run --user alice login rm berth-epilog
}

# A step with a terminal: Ctrl-C goes to the step's terminal.
srun_terminal() {
	begin a alice login bash -c "mkfifo keys; script -qec 'srun --pty -N1 --mem=1500 berth run -f $here/loop.yaml --image $image' /dev/null <>keys; code=\$?; rm keys; exit \$code"
	says a started
	"$bed" run --user alice login sh -c 'printf "\003" >keys'
	ends a 130
	says a 'ended in order'
}

# From the shell of a batch script, berth starts a step. Nothing else changes.
script_step() {
	begin a alice login sbatch -W -o /home/alice/script.out --mem=1500 -n2 $here/script.sh
	ends a 0
	node sh -c 'cat /home/alice/script.out; rm /home/alice/script.out' >"$out/a"
	grep -vE '^(srun|slurmstepd|berth|Submitted)' "$out/a" | diff - <(cat <<-END
		started
		line 1: 0
		started
		line 2: 0
		words
		2 tasks, step none
		in a step
		command: 7
		y
		pipe: 141
		full: 74
		as the script: none
	END
	) >"$out/differs" || fail "$(cat "$out/differs" "$out/a")"
	says a 'nobody reads the output any more'
}

# When the shell of the batch script ends, Slurm kills the processes of the script, but
# not the step that berth has started.
script_scancel() {
	begin a alice login sbatch -W -o /home/alice/script.out --mem=1500 --wrap "env PATH=$PATH /srv/ends/dist/bin/berth run -f $here/loop.yaml --image $image"
	poll 60 node grep -qs started /home/alice/script.out || fail "not started: $(node cat /home/alice/script.out)"
	"$bed" run --user alice login scancel "$(job)"
	ends a 0 1 15 143 137
	node rm /home/alice/script.out
	no_secret
	begin b alice n1 berth cleanup
	ends b 0
	# There is no shell with berth submit, so what pods write while they end arrives.
	begin c alice login berth submit --wait -o /home/alice/script.out --mem=1500 -f $here/loop.yaml --image $image
	says c started
	"$bed" run --user alice login scancel "$(job)"
	ends c 143
	node cat /home/alice/script.out >"$out/c"
	node rm /home/alice/script.out
	says c 'ended in order'
}

# A job that is suspended and resumed continues, and nothing is restarted.
suspend() {
	local id
	berth a -f $here/loop.yaml --image $image
	says a started
	id=$(job)
	"$bed" run ctl scontrol suspend "$id"
	poll 20 suspended || fail "the supervisor is not suspended"
	# Long enough for a process outside the suspended job to continue the others.
	sleep 2.5
	suspended || fail "the supervisor does not stay suspended"
	"$bed" run ctl scontrol resume "$id"
	poll 20 works || fail "exec does not work after the suspension"
	never_says a 'starting it again'
	signal TERM supervisor
	says a 'ended in order'
	ends a 143
}
# A process that a cgroup has frozen is in state D.
suspended() { node grep -q '^State:.[TD]' "/proc/$(parts supervisor)/status"; }

# Without slurmstepd, Slurm can end no process of a step.
lost_stepd() {
	berth a -f $here/loop.yaml --image $image
	says a started
	node kill -KILL "$(node pgrep -f "^slurmstepd: .$(job)[.]0.")"
	poll 30 no_parts || fail "the run goes on: $(node ps -u alice -o pid,args)"
	# srun does not learn of the end either.
	"$bed" run --user alice login scancel "$(job)"
	"$bed" run login sh -c 'kill -KILL $(pgrep "^srun")'
	ends a 137
}
no_parts() { [[ -z $(parts supervisor janitor init net control) ]]; }

time_limit() {
	# Slurm counts limits in minutes, and checks them only from time to time.
	timeout=250
	begin a alice login sbatch -W -o /home/alice/limit.out --time=1 --mem=1500 --wrap "srun env PATH=$PATH /srv/ends/dist/bin/berth run -f $here/loop.yaml --image $image"
	ends a 0 1 15 143 124 137
	node cat /home/alice/limit.out >"$out/a"
	says a started
	[[ $("$bed" run ctl scontrol -o show job "$(last_job)") == *JobState=TIMEOUT* ]] || fail "the job's state is not TIMEOUT"
	node rm /home/alice/limit.out
	begin b alice n1 berth cleanup
	ends b 0
}

# At its step's limit berth has KillWait, though the job has no limit and goes on.
step_time_limit() {
	timeout=250
	begin a alice login sbatch -W -o /home/alice/limit.out --mem=1500 --wrap "srun --time=1 env PATH=$PATH /srv/ends/dist/bin/berth run -f $here/stubborn.yaml --image $image"
	ends a 143
	node cat /home/alice/limit.out >"$out/a"
	says a started
	says a 'the workload has 2s to end'
	node rm /home/alice/limit.out
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

# The requested memory counts, whether Slurm, cgroups or nobody enforces it.
memory_asked() {
	begin a alice login srun -N1 --mem=1400 berth run -q -- kubectl get nodes -o 'jsonpath={.items[0].status.capacity.memory}'
	ends a 0
	grep -qx 1400Mi "$out/a" || fail "not 1400 MiB: $(cat "$out/a")"
	# doctor reports too little memory if a run does, even where only Slurm's
	# controller knows the limit.
	begin b alice login srun -N1 --mem=300 sh -c 'berth run -- true; echo run $?; berth doctor; echo doctor $?'
	ends b 0
	says b 'run 78'
	says b 'doctor 1'
	says b 'no, it lacks: memory'
}

small_step() {
	begin a alice login sbatch -W -o /home/alice/small.out -n2 --mem=1500 --wrap "srun -n1 -c1 --exact env PATH=$PATH /srv/ends/dist/bin/berth run -- true"
	ends a 0
	node cat /home/alice/small.out >"$out/a"
	node rm /home/alice/small.out
	timeout=1 says a 'this step may use only'
}

# The shell of salloc is on the login host, where no cluster is started.
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

# Only with cgroups that limit memory.
out_of_memory() {
	memory=900
	berth a -f $here/greedy.yaml --image $image
	says a started
	# The kernel kills the pod but not berth, which reports that.
	timeout=90
	ends a 137 1
	says a 'job greedy failed'
}

# A pod that fills the disk of its node is evicted, and its run ends. A run whose
# parts are killed at once leaves a full disk, and the next run makes room.
full_disk() {
	local disk=/var/tmp/small
	node sh -c "mkdir -p $disk && mount -t tmpfs -o size=300m,mode=1777 tmpfs $disk" || fail "no small disk"
	memory=1900
	berth a --state-dir $disk --image $image -f $here/fill.yaml
	ends a 137
	says a 'Evicted: The node was low on'
	berth b --state-dir $disk --image $image -f $here/fill.yaml
	poll 60 node sh -c "[ \$(df --output=avail $disk | tail -n 1) -lt 1000 ]" || fail "the disk is not full"
	node pkill -KILL -u alice
	ends b 137
	berth c --state-dir $disk -- true
	ends c 0
	node sh -c "umount $disk && rmdir $disk"
}

# What a pod writes while the disk is full arrives, or is counted. That is said also
# with -q, and makes a run fail whose workload succeeds.
full_log() {
	local disk=/var/tmp/small arrived lost
	node sh -c "mkdir -p $disk && mount -t tmpfs -o size=300m,mode=1777 tmpfs $disk" || fail "no small disk"
	memory=1900
	berth a -q --state-dir $disk --image $image -f $here/full-log.yaml
	ends a 74
	says a 'node n1 could not write it to the log'
	arrived=$(grep -Ex '[0-9]*|END' "$out/a" | wc -c)
	lost=$(sed -n 's/.*lost: \([0-9]*\) bytes; the workload itself has succeeded.*/\1/p' "$out/a")
	grep -qx END "$out/a" && ((lost > 0 && arrived + lost == 1400404)) || fail "$arrived bytes arrived, '$lost' are lost: $(grep -Evx '[0-9]*' "$out/a" | tail -n 12)"
	node sh -c "umount $disk && rmdir $disk"
}

# While nobody reads the output, its pod is deleted with its log, which is larger than
# what a node keeps. What is on its way arrives, and the rest is counted.
slow_reader() {
	local arrived lost
	begin a alice login srun -N1 --mem=1500 env BERTH_LOG_SPOOL=1000000 bash $here/slow-reader.sh /tmp/read-on \
		berth run -q -f $here/spool.yaml --image $image
	says a 'reading has stopped'
	poll 100 no_open_logs || fail "the node keeps the log: $(open_files)"
	node touch /tmp/read-on
	says a 'n1 ended with 74'
	node rm /tmp/read-on
	ends a 0
	arrived=$(sed -n 's/ bytes were read$//p' "$out/a")
	lost=$(sed -n 's/.*lost: [0-9]* lines, \([0-9]*\) bytes; the workload itself has succeeded.*/\1/p' "$out/a")
	says a 'its reader was slower than the container, and node n1 keeps no more'
	((lost > 0 && arrived + lost == 40000000)) || fail "$arrived bytes arrived, '$lost' are lost: $(tail -n 12 "$out/a")"
}
# A container that can never start ends the run, but not before a reader who takes his
# time has got the output of the container before it.
stuck_after_output() {
	begin a alice login srun -N1 --mem=1500 bash $here/paced-reader.sh berth run -f $here/stuck.yaml --no-pull --image $image
	says a 'bytes were read'
	says a 'n1 ended with 75'
	ends a 0
	says a '55000000 bytes were read' # with '[stuck first] ' before each line
	never_says a 'is lost'
}
# Another container of the pod can never start, which ends the run while the reader has
# stopped. The unread output is counted, even with -q.
never_beside() {
	begin a alice login srun -N1 --mem=1500 bash $here/slow-reader.sh /tmp/read-on berth run -q -f $here/never-beside.yaml --image $image
	says a 'cannot start: InvalidImageName'
	says a 'the run was ended before it was passed on'
	node touch /tmp/read-on
	says a 'n1 ended with 75'
	ends a 0
	node rm /tmp/read-on
}
no_open_logs() { open_files >"$out/open" && ! grep -q pod-logs/default_ "$out/open"; }
open_files() { node sh -c 'ls -l /proc/$(pgrep -f "log-rol[e] ")/fd'; }

# greeted NODE... checks the output of a: a pod of spread.yaml ran on each node.
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

# span_berth begins a berth run on three nodes.
span_berth() { # NAME ARGS...
	local name=$1
	shift
	begin "$name" alice login srun -N3 --mem=1500 berth run "$@"
}

span() {
	span_berth a -f $here/spread.yaml --image $image
	ends a 0
	greeted n1 n2 n3
	# The command runs once, after all nodes have joined.
	span_berth b -- sh -c 'kubectl get nodes -o name; exit 5'
	ends b 5
	[[ $(grep -c ^node/ "$out/b") == 3 ]] || fail "not three nodes, once: $(cat "$out/b")"
}

# Nodes without FUSE unpack images, while others mount them. On one of them the device
# belongs to root; on the other it cannot mount anything.
without_fuse() {
	"$bed" run n2 sh -c 'touch /run/fuse && chmod 0600 /run/fuse && mount --bind /run/fuse /dev/fuse' || fail "no device for root only"
	"$bed" run n3 mount --bind /dev/null /dev/fuse || fail "no other device"
	span_berth a --image $image -- sh -c "kubectl apply -f $here/spread.yaml && kubectl wait --for=condition=complete --timeout=90s job/spread &&
		kubectl logs -l app=spread && berth status"
	ends a 0
	greeted n1 n2 n3
	says a '2 overlayfs, 1 erofs'
	# An explicit --snapshotter erofs is refused, and --image-cache is reported as
	# unused.
	begin c alice n2 berth run --snapshotter erofs -- true
	ends c 69
	says c 'open /dev/fuse: permission denied; an administrator can run: modprobe fuse && chmod 0666 /dev/fuse, or omit the option'
	begin d alice n2 berth run --image-cache /home/alice/cache -f $here/limits.yaml --image $image
	ends d 0
	says d 'images are unpacked here, without --image-cache: '
	# Without FUSE, programs see the limits in static files.
	for line in 'meminfo 65536 kB' 'memory.max 67108864' 'sysinfo 65536 kB' '1 CPU in cpuinfo' 'the files are static'; do
		says d "$line"
	done
	"$bed" run --user alice n2 rmdir /home/alice/cache
	begin e alice n3 berth run --snapshotter erofs -- true
	ends e 69
	says e 'mount fuse: '
	"$bed" run n2 sh -c 'umount /dev/fuse && rm /run/fuse'
	"$bed" run n3 umount /dev/fuse
}

# Programs adapt to the limits of their container, also in a container with its own
# seccomp listener (docs/limits.md has the table).
program_limits() {
	local where line
	begin a alice login srun -N1 -c2 --mem=1900 berth run -f $here/program-limits.yaml --image runtimes:1=/srv/runtimes
	ends a 0
	for where in fast-path own-listener; do
		for line in 'JVM 17: 1 CPUs, 512 MiB, 128 MiB of heap' 'JVM 21: 1 CPUs, 512 MiB, 128 MiB of heap' 'JVM 25: 1 CPUs, 512 MiB, 128 MiB of heap' \
			'Node: 1 CPUs, 512 MiB' 'Node, available: 1 CPUs, 512 MiB' 'Python: 1 CPUs, 512 MiB' 'Python, affinity: 1 CPUs' \
			'psutil: 1 CPUs, 512 MiB' 'Dask: 1 CPUs, 512 MiB' 'OpenBLAS: 1 CPUs' 'Go: 1 CPUs, 1 used' 'Ray: 1 CPUs, 512 MiB' 'OpenMPI: 1 slot' 'getconf: 1 CPUs, 512 MiB'; do
			says a "$where: $line"
		done
	done
}

# An archive on the local disk of the head reaches the other nodes, even if one has a
# different file of that name.
own_archive() {
	node cp "$image" /var/tmp/own.tar
	"$bed" run --user alice n2 sh -c 'echo something else >/var/tmp/own.tar'
	span_berth a -f $here/spread.yaml --image /var/tmp/own.tar
	ends a 0
	greeted n1 n2 n3
	# If four nodes lack it, two of them get it from the other two.
	span_berth b --nodes-per-host 2 --image /var/tmp/own.tar -- sh -c "kubectl apply -f $here/web.yaml && kubectl rollout status --timeout=60s ds/web"
	ends b 0
	says b 'successfully rolled out'
	for node in n1 n2; do "$bed" run "$node" rm /var/tmp/own.tar; done
}

# All nodes use a folder with an unpacked image or an OCI layout, which must be
# visible on each of them.
unpacked() {
	begin a alice login sh -c "cd && berth image import -q --image-cache cache $image && berth image bundle -q --image-cache cache busybox:1.37 own &&
		berth image export -q --image-cache cache busybox:1.37 own.tar && mkdir layout && tar -C layout -xf own.tar"
	ends a 0
	span_berth d -f $here/spread.yaml --image busybox:1.37=/home/alice/layout
	ends d 0
	cp "$out/d" "$out/a"
	greeted n1 n2 n3
	span_berth b -f $here/spread.yaml --image busybox:1.37=/home/alice/own/rootfs
	ends b 0
	cp "$out/b" "$out/a"
	greeted n1 n2 n3
	node cp -r /home/alice/own/rootfs /var/tmp/own
	span_berth c -f $here/spread.yaml --image busybox:1.37=/var/tmp/own
	ends c 69
	says c 'use folder /var/tmp/own as an image: this node does not have it'
	node cp -r /home/alice/layout /var/tmp/layout
	span_berth e -f $here/spread.yaml --image busybox:1.37=/var/tmp/layout
	ends e 69
	says e 'use folder /var/tmp/layout as an image: this node does not have it'
	node rm -r /var/tmp/own /var/tmp/layout /home/alice/own /home/alice/own.tar /home/alice/layout /home/alice/cache
}

# Pods of different nodes reach each other, by address and through a Service.
talk() {
	span_berth a --fast-path "${fast:-off}" --image $image -- bash $here/talk.sh
	ends a 0
	says a 'every pod reaches every pod'
}

# The hosts make connections, while the roles that make them die.
fast_path() {
	local node deaths=0
	span_berth a --image $image -- bash $here/fast.sh
	timeout=200 says a 'connections are being made'
	for node in n1 n2 n1; do
		poll 60 kill_net $node || fail "no net role on $node"
		poll 60 died $((deaths += 1)) || fail "the net role of $node did not die"
	done
	timeout=200 ends a 0
	says a '0 and 0 connections failed'
	says a 'policies hold for connections of the hosts'
}
# The Switch dies together with the process that holds its descriptors.
fast_lost() {
	span_berth a --image $image -- bash $here/lost.sh
	says a 'pods are there'
	"$bed" run n2 sh -c 'kill -KILL $(pgrep -f "^berth net-role")' || fail 'no net role on n2'
	timeout=90 ends a 0
	says a 'pods were made anew'
}
# kill_net NODE kills the net role of a node. It fails until the role has taken over from
# its predecessor, whose process that holds descriptors is older than the role.
kill_net() {
	"$bed" run "$1" sh -c 'role=$(pgrep -o -f "^berth net-role") && pgrep -P "$role" -f "^berth net-role" >/dev/null && kill -KILL "$role"'
}
died() { (($(grep -c 'net ended: killed by signal 9' "$out/a") >= $1)); }
fast_talk() { local fast=auto && talk; }
fast_services() { local fast=auto && services; }
fast_traffic() { local fast=auto && traffic; }

# The same over TCP, which some firewalls permit.
talk_tcp() {
	span_berth a --fast-path "${fast:-off}" --carrier tcp --image $image -- bash $here/talk.sh
	ends a 0
	says a 'every pod reaches every pod'
}

# A firewall that drops UDP is detected.
talk_blocked() {
	local nft=/srv/ends/dist/libexec/berth/nft
	for node in n1 n2 n3; do
		"$bed" run $node $nft 'add table inet wall; add chain inet wall in { type filter hook input priority 0; }; add rule inet wall in udp dport 21000-28999 drop'
	done
	# The run lasts longer, as the warning comes only after a while.
	span_berth a --fast-path "${fast:-off}" --image $image -- bash -c "bash $here/talk.sh && sleep 4"
	ends a 0
	says a 'every pod reaches every pod'
	says a 'UDP does not get through'
	for node in n1 n2 n3; do "$bed" run $node $nft delete table inet wall; done
}

services() {
	span_berth a --fast-path "${fast:-off}" --image $image -- bash $here/services.sh
	timeout=200 ends a 0
	says a 'everything reaches everything'
}

# Traffic policies of Services, source addresses, and published ports on all nodes.
traffic() {
	span_berth a --fast-path "${fast:-off}" --publish 8030:30080 --publish 8031:30081 --publish 8088 --image $image -- bash $here/traffic.sh
	timeout=200 ends a 0
	says a 'traffic goes where it may'
	says a 'can connect to its port 8030, which leads to port 30080 of the node'
	# The message about a port in use has the port and the option.
	begin taken bob n2 busybox nc -l -p 8030
	poll 10 listens n2 8030 || fail 'nobody listens'
	span_berth b --publish 8030 -- true
	timeout=20 ends b 69
	says b 'publish port 8030 of the nodes'
	"$bed" run n2 sh -c 'kill $(pgrep -f "nc -l -p 8030")'
}
listens() { "$bed" run "$1" ss -Hltn "sport = :$2" | grep -q .; }

# An existing ingress controller, reached from outside the cluster.
ingress() {
	span_berth a --publish 8080:80 --publish 8443:443 --image $image --image /srv/ends/images/traefik.tar \
		-f /srv/ends/examples/traefik.yaml -f /srv/ends/examples/ingress.yaml -- bash $here/ingress.sh
	timeout=200 ends a 0
	says a 'the ingress follows'
}

# Pods on all nodes write to a claim in a folder that all nodes see. It is kept for
# the user and for the next run.
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

# Nodes with different subordinate ids, and without any, form one cluster. Files that
# pods write to shared volumes as root belong to the user on each node. berth reports
# the differences.
unlike_ids() {
	local file
	for file in subuid subgid; do
		"$bed" run n2 sh -c "sed 's/^alice:.*/alice:50000000:65536/' /etc/$file >/run/$file && mount --bind /run/$file /etc/$file"
		"$bed" run n3 sh -c "sed '/^alice:/d' /etc/$file >/run/$file && mount --bind /run/$file /etc/$file"
	done
	"$bed" run --user alice login mkdir shared
	span_berth a --shared-volumes /home/alice/shared -f $here/unlike.yaml --image $image -- sh -c '
		kubectl wait --for=condition=complete --timeout=60s job/write
		kubectl get events --field-selector reason=RunAsUserNotHonoured -o "jsonpath={.items[*].source.host}"'
	ends a 0
	says a 'n2, n3: other subordinate ids than on n1'
	says a 'n3: pods run with one user id only'
	grep -q '^n3$' "$out/a" || fail "not said of n3 alone that it has one user: $(cat "$out/a")"
	[[ $("$bed" run login sh -c 'cd /home/alice/shared/default/results && stat -c %n=%U *-root' | xargs) == "n1-root=alice n2-root=alice n3-root=alice" ]] ||
		fail "files are not alice's: $("$bed" run login ls -ln /home/alice/shared/default/results)"
	[[ $("$bed" run login stat -c %u /home/alice/shared/default/results/n2-1000) == 50000999 ]] || fail "not the id of n2's range: $("$bed" run login ls -ln /home/alice/shared/default/results)"
	"$bed" run login rm -r /home/alice/shared
	for file in subuid subgid; do
		for node in n2 n3; do "$bed" run $node sh -c "umount /etc/$file; rm /run/$file"; done
	done
}

# Slurm's node names that are invalid in Kubernetes and unknown to DNS.
odd_names() {
	span_berth a -- kubectl get nodes -L slurm.berth.dev/node --no-headers
	ends a 0
	[[ $(awk '/ Ready / { print $1 "=" $NF }' "$out/a" | xargs) == "gpu-node01=gpu-node01 gpu-node01-2=Gpu_Node01 gpu-x=GPU__X" ]] ||
		fail "other names: $(cat "$out/a")"
	span_berth b --image $image -- bash $here/move.sh gpu-node01
	says b 'pods on'
	kill_berth n2
	says b 'moved to'
	ends b 137
	swept n2
}

span_scancel() {
	span_berth a -f $here/loop.yaml --image $image
	says a started
	"$bed" run --user alice login scancel "$(job)"
	ends a 143
	says a 'ended in order'
}

# If munge does not answer, nodes prove their identity by data that srun passes
# to the tasks of a step, or by a folder that the user names. Otherwise the
# message tells the user what to do.
no_munge() {
	local host nodes="kubectl get nodes -o name"
	for host in n1 n2 n3; do "$bed" run $host chmod 700 /run/munge; done
	span_berth a -- true
	ends a 69
	says a 'srun --mpi=pmi2 berth run'
	begin b alice login srun --mpi=pmi2 -N3 --mem=1500 berth run -- $nodes
	ends b 0
	counts_nodes b
	# One task on each node acts; PMI waits for all tasks.
	begin c alice login srun --mpi=pmi2 -N3 -n6 --mem=1500 berth run --nodes-per-host 2 -- $nodes
	ends c 0
	counts_nodes c 6
	begin d alice login srun --mpi=pmi2 -N3 --mem=1500 sh -c '[ $SLURMD_NODENAME != n3 ] || exec sleep 5; exec berth run --node-wait 2s -- true'
	timeout=20 ends d 69
	says d 'wait in PMI for all tasks of the step: 2s is the longest wait'
	"$bed" run --user alice login mkdir meet
	span_berth e --rendezvous-dir /home/alice/meet -- $nodes
	ends e 0
	counts_nodes e
	"$bed" run --user alice login rmdir meet || fail "something is left in the folder"
	"$bed" run --user alice login sh -c 'mkdir meet; chmod 770 meet'
	span_berth f --rendezvous-dir /home/alice/meet -- true
	timeout=20 ends f 69
	says f 'chmod go-w'
	"$bed" run --user alice login rmdir meet
	key_of_step
	for host in n1 n2 n3; do "$bed" run $host chmod 755 /run/munge; done
}

# A step that berth starts gets a key that nobody can see. The command gets all of
# the user's input, and nothing of the key.
key_of_step() {
	local host sum
	begin g alice login sh -c "mkdir spy; cp $here/spy.sh spy/srun; ln -s /bin/false spy/munge
		head -c 5000000 /dev/urandom >input; cksum <input
		PATH=\$PWD/spy:\$PATH salloc -N3 --mem=1500 berth run -- sh -c 'cksum; kubectl get nodes -o name; echo up; while [ ! -e done ]; do sleep 0.1; done' <input"
	says g up
	for host in login ctl n1 n2 n3; do
		"$bed" run "$host" bash $here/seek.sh /home/alice/spy/key || fail "the key of the step is seen on $host"
	done
	"$bed" run --user alice login touch done
	ends g 0
	counts_nodes g
	[[ $(grep -c 5000000 "$out/g") == 2 && $(grep 5000000 "$out/g" | sort -u | wc -l) == 1 ]] || fail "the command's input is not the user's: $(cat "$out/g")"
	"$bed" run --user alice login rm -r spy input done
}
counts_nodes() { # NAME [NODES]
	[[ $(grep -c ^node/ "$out/$1") == "${2:-3}" ]] || fail "not ${2:-3} nodes: $(cat "$out/$1")"
}

# Two nodes on each of three hosts.
span_siblings() {
	span_berth a --nodes-per-host 2 -- sh -c 'kubectl get nodes -o name'
	ends a 0
	[[ $(grep -c ^node/ "$out/a") == 6 ]] || fail "not six nodes: $(cat "$out/a")"
}

# A run from a batch script or the shell of salloc uses all nodes of the job,
# including a heterogeneous job.
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

# The head reports a mistake once, and all nodes end at once.
span_mistakes() {
	span_berth a --node-wait 50s -f /nothing.yaml
	timeout=20 ends a 66
	span_berth b --nonsense
	timeout=20 ends b 64
	[[ $(grep -c '^berth: unknown' "$out/b") == 1 ]] || fail "not said once: $(cat "$out/b")"
	begin c alice login srun -N3 --mem=1500 sh -c '[ $SLURMD_NODENAME != n3 ] || exec sleep 5; exec berth run --node-wait 2s -- true'
	timeout=20 ends c 69
	says c 'n3 did not come within 2s'
	begin d alice login srun -N3 --mem=1500 sh -c 'exec berth run --state-dir /nothing/$SLURMD_NODENAME -- true'
	timeout=20 ends d 73
	# The head does not wait for a node that cannot take part, and prints the reason.
	# Some faults show before the node has joined, others after it.
	begin e alice login srun -N3 --mem=1500 sh -c '[ $SLURMD_NODENAME != n3 ] || dir=/nothing; exec berth run ${dir:+--state-dir $dir} -- true'
	timeout=20 ends e 73
	says e 'node n3 cannot take part: no directory on this node'
	[[ $(grep -c '/nothing' "$out/e") == 1 ]] || fail "not said once: $(cat "$out/e")"
	begin f alice login srun -N3 --mem=1500 sh -c '[ $SLURMD_NODENAME != n2 ] || exec unshare -c --keep-caps sh -c "echo 0 >/proc/sys/user/max_user_namespaces; exec berth run"; exec berth run -- true'
	timeout=20 ends f 69
	says f 'node n2 cannot take part: make a user namespace'
	[[ $(grep -c 'make a user namespace' "$out/f") == 1 ]] || fail "not said once: $(cat "$out/f")"
}

# The run continues without a node whose processes died.
lose_worker() {
	span_berth a --image $image -- bash $here/move.sh n2
	says a 'pods on'
	kill_berth n2
	says a 'moved to'
	ends a 137 # srun's word for the task on n2
	says a 'lost node n2'
	swept n2
}
# A node is lost while its pod has ten minutes to end. The run does not wait for that pod.
lose_ending_worker() {
	local node
	begin a alice login srun -N3 --mem=1500 --time=10 berth run -f $here/slow-spread.yaml --image $image
	for node in n1 n2 n3; do says a "started on $node"; done
	signal TERM supervisor
	says a 'asked to end on n2'
	kill_berth n2
	ends a 137 143 # srun's word for the task on n2 or on n1
	says a 'berth: ended by signal 15'
	for node in n1 n3; do says a "ended in order on $node"; done
	says a 'lost node n2'
	says a 'the workload ends without the node and its pods'
	swept n2
}
# Output that a lost node had written but not sent is counted and reported, even with
# -q. The run fails although its workload succeeds.
lose_output() {
	begin a alice login srun -N3 --mem=1500 bash $here/slow-reader.sh /tmp/read-on berth run -q -f $here/lost-output.yaml --image $image
	says a 'reading has stopped'
	poll 60 kubectl wait --timeout=10s --for=condition=Ready pod -l job-name=lost-output >/dev/null || fail "the pod does not write"
	kill_berth n2
	node touch /tmp/read-on
	says a 'again on n'
	says a 'n1 ended with 74'
	node rm /tmp/read-on
	ends a 0
	# If the node sent as fast as the pod wrote, the number of bytes is unknown
	# (0018); unit tests check the number.
	grep -Eq 'output of container main of pod lost-output-[a-z0-9]+ is lost \(([0-9]+ bytes|an unknown part)\): node n2 does not answer' "$out/a" || fail "the loss is not reported: $(tail -n 12 "$out/a")"
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
# A node rejoins the run after its network failed and returned.
partition() {
	span_berth a --image $image -- bash $here/move.sh n2 back
	says a 'pods on'
	"$bed" cut n2
	timeout=40 says a 'moved to'
	"$bed" mend n2
	timeout=40 says a 'node n2 is back'
	timeout=60 ends a 0
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
# A node is lost and does not return: srun returns the workload's code once Slurm has
# given the node up. srun runs on a node, because Slurm 22.05.8 notifies no srun
# elsewhere.
lost_for_good() {
	begin a alice n1 salloc --no-kill -N3 --mem=1500 berth run -f $here/spread.yaml --image $image -- \
		sh -c 'echo cut; until [ "$(squeue -h -j $SLURM_JOB_ID -o %N)" = "n[1-2]" ]; do sleep 1; done; kubectl get nodes --no-headers; exit 6'
	says a cut
	"$bed" cut n3
	ends a 6
	says a 'lost node n3'
	grep -Eq '^n3 +NotReady' "$out/a" || fail "n3 is not lost: $(tail -n 12 "$out/a")"
	"$bed" mend n3
	poll 60 "$bed" run n3 timeout 5 squeue -h >/dev/null || fail "n3 is not back"
	"$bed" run n3 pkill -HUP -x slurmd # it registers at once: Slurm asks a lost node every two minutes
	poll 100 vacant n3 || fail "n3 is not empty: $("$bed" run ctl sinfo)"
	swept n3
}
# vacant NODE: the node is idle again, and Slurm has ended the abandoned step there.
vacant() { [[ $("$bed" run ctl sinfo -h -n "$1" -o %T) == idle && -z $("$bed" run "$1" pgrep -x slurmstepd) ]]; }

# The following cases have three control planes, and lose nodes of the run.
ha_refused() {
	begin a alice login srun -N2 --mem=1500 berth run --ha -f $here/spread.yaml --image $image
	ends a 78
	says a 'needs 3 nodes'
}
ha_lose_second() {
	span_berth a --ha --image $image -- bash $here/move.sh n2
	says a 'pods on'
	kill_berth n2
	says a 'moved to'
	ends a 137 # srun's word for the task on n2
	says a 'lost node n2'
	swept n2
}
ha_partition() {
	span_berth a --ha --image $image -- bash $here/move.sh n3 back
	says a 'pods on'
	"$bed" cut n3
	timeout=40 says a 'moved to'
	"$bed" mend n3
	timeout=40 says a 'node n3 is back'
	timeout=90 ends a 0
	says a 'here again'
}
# Slurm takes down the first node, which leads the run. Another node takes the run
# over, and pods of the first node start again elsewhere. The cluster can be reached
# from the login host meanwhile.
ha_lose_head() {
	begin a alice login salloc --no-kill -N3 --mem=1500 berth run --ha -f $here/outlive.yaml --image $image
	says a 'begun on n1'
	poll 20 beside 3 n1 || fail "not three pods, one of them on n1: $(cat "$out/asked")"
	"$bed" run ctl scontrol update nodename=n1 state=down reason=ends
	# etcd may be electing a leader, but no node leads the run yet.
	poll 20 beside 3 n1 || fail "the cluster is not reached: $(cat "$out/asked")"
	says a 'which led the run, is lost'
	poll 20 moved || fail "the pods have not moved: $(cat "$out/asked"); $(tail -n 15 "$out/a")"
	asks 0 'lost: n1' alice status "$(job)"
	timeout=90 ends a 137
	outlived a
	poll 20 no_tunnel || fail "the tunnel outlives the job"
	"$bed" run ctl scontrol update nodename=n1 state=resume 2>/dev/null
	swept n1
}
beside() { # COUNT NODE: so many pods run, one of them there
	into asked alice kubectl get pods -l app=beside --field-selector=status.phase=Running -o 'jsonpath={.items[*].spec.nodeName}'
	wait "${pids[asked]}"
	[[ $(wc -w <"$out/asked") == "$1" ]] && grep -q "$2" "$out/asked"
}
moved() { beside 3 n2 && ! grep -q n1 "$out/asked"; }
# A head that is cut off ends itself, and another node leads.
ha_cut_head() {
	begin a alice login srun -N3 --no-kill --mem=1500 berth run --ha -f $here/outlive.yaml --image $image
	says a 'begun on n1'
	"$bed" cut n1
	says a 'which led the run, is lost'
	"$bed" mend n1
	# The last output of n1's pod is unknown. srun returns the largest code of its tasks.
	timeout=90 ends a 74
	says a 'task 0: Exited with exit code 69'
	says a 'is lost (an unknown part): node n1 does not answer'
	says a 'n2 and n3 are lost, and the cluster cannot go on with 1 of 3 control planes'
	outlived a
}
# The workload ends while no node leads the run. The third node, which is stopped
# meanwhile, finds the next head only afterwards, and learns of the end from it.
ha_end_without_head() {
	span_berth a --ha -f $here/short.yaml --image $image
	says a started
	"$bed" run n3 sh -c 'kill -STOP $(pgrep -f "^[^ ]*berth run ")'
	kill_berth n1
	says a 'node n2 leads it now'
	says a 'end of short'
	# The next head waits for n3, for 15 s at most.
	poll 5 no_berth n2
	"$bed" run n3 sh -c 'kill -CONT $(pgrep -f "^[^ ]*berth run ")'
	ends a 137 # srun's word for the task on n1
	never_says a 'no other node has taken the run over'
	never_says a 'n3: Exited'
	swept n1
}
no_berth() { ! "$bed" run "$1" pgrep -f '^[^ ]*berth run ' >/dev/null; }
# The next head knows a Job that has failed and is deleted, and its output.
ha_gone_job() {
	span_berth a --ha -f $here/gone.yaml --image $image
	says a 'early output'
	says a 'late output'
	poll 30 is_gone early || fail "the Job early is not deleted: $(kubectl get jobs)"
	# The second renewal from here on has been written down after that.
	for _ in 1 2; do
		lease=$(renewal)
		poll 10 renewed "$lease" || fail "the lease is not renewed"
	done
	kill_berth n1
	says a 'which led the run, is lost'
	timeout=90 ends a 137 # srun's word for the task on n1
	says a 'job early failed: BackoffLimitExceeded'
	says a 'exit code 3'
	[[ $(grep -c 'early output' "$out/a") == 1 && $(grep -c 'late end' "$out/a") == 1 ]] || fail "output is repeated or lost: $(cat "$out/a")"
	swept n1
}
# A Job succeeds and is deleted while no head watches it. The next head learns that from
# the Job's events, and passes on the output, also of a pod that no head has seen.
ha_unseen_job() {
	local line
	span_berth a --ha -f $here/unseen.yaml --image $image
	says a 'begin of 0'
	"$bed" run n1 sh -c 'kill -STOP $(pgrep -f "^[^ ]*berth run ")'
	kubectl exec job/unseen -- touch /tmp/go || fail "the pod cannot be told to end"
	poll 30 is_gone unseen || fail "the Job is not deleted: $(kubectl get jobs)"
	kill_berth n1
	says a 'which led the run, is lost'
	timeout=90 ends a 137 # srun's word for the task on n1
	for line in 'end of 0' 'begin of 1' 'end of 1'; do
		[[ $(grep -c "$line" "$out/a") == 1 ]] || fail "output is repeated or lost: $(cat "$out/a")"
	done
	never_says a 'it is not known whether it succeeded'
	never_says a 'Exited with exit code'
	swept n1
}
is_gone() { [[ -z $(kubectl get job "$1" --ignore-not-found -o name || echo unknown) ]]; }
renewal() { kubectl -n kube-system get lease berth-lead -o 'jsonpath={.spec.renewTime}'; }
renewed() { [[ $(renewal) != "$1" ]]; }
# A head that gives its pods more time than the lease lasts (12 s) keeps the lease.
ha_slow_end() {
	"$bed" run --user alice login sh -c "sed 's/sleep 5/sleep 20/' $here/slow-end.yaml >slow.yaml"
	begin a alice login srun -N3 --mem=1500 --time=1 berth run --ha --grace 40s -f slow.yaml --image $image
	says a started
	ends a 124
	says a 'ended in order'
	never_says a 'leads it now'
	never_says a 'lost node'
	"$bed" run --user alice login rm slow.yaml
}
outlived() { [[ $(grep -c 'ended on n[23]' "$out/$1") == 3 ]] || fail "three pods should have ended on n2 and n3: $(tail -n 20 "$out/$1")"; }
# A killed control plane is restarted, and the others answer meanwhile.
ha_kill_control() {
	span_berth a --ha --image $image -- bash $here/ask.sh /tmp/asked
	says a asking
	signal KILL control
	says a 'starting it again'
	poll 60 restarted || fail "the control plane is not started again"
	signal KILL control
	node touch /tmp/asked
	ends a 0
	node rm /tmp/asked
	says a 'answers again'
	say "$(grep longest "$out/a")"
}
restarted() { parts control >/dev/null; }
# The loss of a second node loses the majority.
ha_lose_majority() {
	span_berth a --ha -f $here/loop.yaml --image $image
	says a started
	kill_berth n2
	says a 'lost node n2'
	kill_berth n3
	ends a 137
	says a 'the cluster cannot go on with 1'
	swept n2
	swept n3
}
ha_lose_majority_with_head() {
	span_berth a --ha -f $here/loop.yaml --image $image
	says a started
	kill_berth n1
	kill_berth n2
	timeout=100 ends a 137
	says a 'no other node has taken the run over'
	swept n1
	swept n2
}
# The node that runs the user's command cannot be replaced.
ha_lose_command() {
	span_berth a --ha --image $image -- sh -c 'echo started; sleep 1000'
	says a started
	kill_berth n1
	ends a 137
	says a 'lost node n1'
	swept n1
}
# swept NODE: the next berth removes what a killed run left on the node.
swept() {
	begin c alice "$1" berth cleanup
	ends c 0
}
kill_berth() { "$bed" run "$1" sh -c 'kill -KILL $(pgrep -f "^[^ ]*berth run ")'; }

# If all hosts have IPv6, pods have it, too.
dual() {
	span_berth a --fast-path "${fast:-off}" --image $image --image $web_image -- bash $here/dual.sh
	timeout=200 ends a 0
	says a 'everything reaches everything by IPv6'
}
dual_tcp() {
	span_berth a --fast-path "${fast:-off}" --carrier tcp --image $image --image $web_image -- bash $here/dual.sh
	timeout=200 ends a 0
	says a 'everything reaches everything by IPv6'
}
# The same, if the hosts make the connections.
dual_fast() {
	span_berth a --fast-path auto --image $image --image $web_image -- bash $here/dual_fast.sh
	timeout=200 ends a 0
	says a 'the hosts make connections by IPv6'
}
# Network policies, with both IP families.
policies() {
	span_berth a --fast-path "${fast:-off}" --image $image --image $web_image -- bash $here/policy.sh
	timeout=200 ends a 0
	says a 'policies hold everywhere'
}
# The same, if the hosts make the connections.
policies_fast() {
	span_berth a --image $image --image $web_image -- bash $here/policy.sh
	timeout=200 ends a 0
	says a 'policies hold everywhere'
}
# With one host without IPv6, all pods have only IPv4, unless the run requires IPv6
# between the pods.
dual_mixed() {
	local ranges='jsonpath={.items[*].spec.podCIDRs}' address
	address=$("$bed" run n2 ip -6 -o addr show dev eth0 scope global | sed -n 's|.* inet6 \([^ ]*\) .*|\1|p')
	"$bed" run n2 ip addr del "$address" dev eth0
	span_berth a -v -- kubectl get nodes -o "$ranges"
	ends a 0
	says a 'the host of node n2 has no global IPv6 address'
	never_says a '"fd'
	span_berth b --ip-family dual -- kubectl get nodes -o "$ranges"
	ends b 0
	says b 'do not reach the outside'
	[[ $(grep -o '"fd' "$out/b" | wc -l) == 3 ]] || fail "not three ranges: $(cat "$out/b")"
	"$bed" run n2 ip addr add "$address" dev eth0 nodad
	span_berth c --ip-family ipv4 -- kubectl get nodes -o "$ranges"
	ends c 0
	never_says c '"fd'
	span_berth d -- kubectl get nodes -o "$ranges"
	ends d 0
	[[ $(grep -o '"fd' "$out/d" | wc -l) == 3 ]] || fail "not three ranges: $(cat "$out/d")"
	# On one node nft refuses rules for IPv6.
	local refusing='[ $SLURMD_NODENAME != n2 ] || PATH=/srv/ends/refusing/bin:$PATH; exec berth run "$@"'
	begin e alice login srun -N3 --mem=1500 sh -c "$refusing" sh -- kubectl get nodes -o "$ranges"
	ends e 0
	says e 'warn: pods have only IPv4 addresses: the kernel of node n2 takes no rules'
	never_says e '"fd'
	begin f alice login srun -N3 --mem=1500 sh -c "$refusing" sh --ip-family dual -- true
	ends f 69
	says f '--ip-family ipv4 does without'
}

# One host has a smaller MTU than the others. All pods use the smaller MTU, but not in
# a run without that node.
unlike_mtus() {
	span_berth a --image $image -- bash $here/talk.sh
	ends a 0
	says a 'every pod reaches every pod'
	[[ $(grep -c 'packets of 1448' "$out/a") == 3 ]] || fail "not the MTU of the narrow node: $(cat "$out/a")"
	begin b alice login srun -N2 -w n1,n3 --mem=1500 berth run --image $image -- bash $here/talk.sh
	ends b 0
	[[ $(grep -c 'packets of 8948' "$out/b") == 2 ]] || fail "not the MTU of the wide nodes: $(cat "$out/b")"
}

# fake_driver makes files that look to berth like an NVIDIA driver.
fake_driver() {
	mkdir -p "$stage/driver"/{lib,bin}
	echo "fake driver" >"$stage/driver/lib/libnvidia-ml.so.999.1"
	echo 'int cuInit(void) { return 4711; }' | gcc -shared -x c -o "$stage/driver/lib/libcuda.so.999.1" -Wl,-soname,libcuda.so.1 -
	ln -sf libcuda.so.999.1 "$stage/driver/lib/libcuda.so.1"
	printf '#!/bin/sh\necho fake nvidia-smi\n' >"$stage/driver/bin/nvidia-smi"
	chmod -R a+rX "$stage/driver"
	chmod +x "$stage/driver/bin/nvidia-smi"
}

gpu_berth() { # NAME SRUN-OPTIONS : ARGS...
	local name=$1 options=()
	shift
	while [[ $1 != : ]]; do
		options+=("$1")
		shift
	done
	shift
	begin "$name" alice login srun -N2 --mem=1500 "${options[@]}" env LD_LIBRARY_PATH=/srv/ends/driver/lib berth run --image $image "$@"
}

# Slurm chooses the GPUs of the job on each node. Pods that request GPUs get these;
# other pods get none.
gpus() {
	fake_driver
	begin d alice login srun -N1 -n1 --mem=500 --gpus-per-node=2 berth doctor
	ends d 0 1
	says d 'nvidia.com/gpu: 2'
	gpu_berth a --gpus-per-node=1 : -- bash $here/devices.sh 1
	ends a 0
	says a 'n1 has 1'
	says a 'n2 has 1'
	says a 'GPUs are as they should be'
	# A program that finds the driver's libraries with the dynamic linker.
	gpu_berth l -N1 --gpus-per-node=1 : --image /srv/ends/images/ksi.tar -f $here/linker.yaml
	ends l 0
	says l 'the driver answers 4711'
	# While another job has the first GPU, the run gets the second.
	begin b alice login srun -N1 -w n1 --mem=100 --gpus-per-node=1 sh -c 'echo "holds $SLURM_STEP_GPUS"; exec sleep 100'
	says b holds
	gpu_berth c -w n1 -N1 --gpus-per-node=1 : -- bash $here/devices.sh 1
	ends c 0
	says c "sees nvidia$((1 - $(sed -n 's/^holds //p' "$out/b")))"
	"$bed" run ctl scancel -u alice
	# The step that berth starts has all GPUs of the allocation.
	begin d alice login salloc -Q -N2 --mem=1500 --gpus-per-node=2 env LD_LIBRARY_PATH=/srv/ends/driver/lib berth run --image $image -- bash $here/devices.sh 2
	ends d 0
	says d 'n1 has 2'
	says d 'n2 has 2'
	says d 'GPUs are as they should be'
	# Slurm would give the step, which has one task on each node, one GPU on each.
	begin e alice login salloc -Q -N2 -n4 --mem=1500 --gpus-per-task=1 env LD_LIBRARY_PATH=/srv/ends/driver/lib berth run --image $image -- bash $here/devices.sh 2
	ends e 0
	says e 'n1 has 2'
	says e 'n2 has 2'
	says e 'GPUs are as they should be'
}

# A job without GPUs gets none, although their device files exist.
gpus_of_others() {
	gpu_berth a : -- sh -c 'kubectl get nodes -o jsonpath="{.items[*].status.allocatable}"; kubectl apply -f '$here/devices.yaml'; kubectl rollout status --timeout=30s ds/without'
	ends a 0
	never_says a nvidia.com
}

# Other device files, by resource name. After a restart of the node role each pod
# still has its devices.
devices() {
	begin a alice login srun -N1 --mem=1500 berth run --device site.org/fuse:2=/dev/fuse,/dev/net/tun --device /dev/nowhere --image $image -- sh -c '
		sed "s|nvidia.com/gpu|site.org/fuse|" '$here/devices.yaml' | kubectl apply -f -
		kubectl rollout status --timeout=30s ds/with && echo "with it: $(kubectl exec ds/with -- ls /dev | xargs)"
		kubectl get nodes -o jsonpath="{.items[0].status.allocatable}"; echo
		sleep 1000'
	says a 'not offered here: stat /dev/nowhere'
	says a 'with it:'
	says a '"site.org/fuse":"2"'
	signal KILL node
	says a 'node ended'
	poll 30 kubectl rollout status --timeout=5s ds/with >/dev/null 2>&1 || fail "the pod was lost: $(kubectl get pods)"
	# A restarted kubelet first lists its pods.
	poll 30 eval '[[ $(kubectl exec ds/with -- ls /dev/fuse /dev/net/tun 2>/dev/null | wc -l) == 2 ]]' || fail "the pod has lost its device"
	signal TERM supervisor
	ends a 143
}

# Pods of every kind try to leave their containers. Root of a pod is the user, so a
# privileged pod that sees the sandbox's processes reaches what is the user's in files and in
# the sandbox, and nothing else.
escape() {
	local denied allowed pod
	denied=$("$bed" run ctl ip -4 -o addr show dev eth0 | sed -n 's|.* inet \([^/]*\)/.*|\1|p')
	allowed=$("$bed" run n1 ip -4 -o addr show dev eth0 | sed -n 's|.* inet \([^/]*\)/.*|\1|p')
	"$bed" run --user bob n1 sh -c 'umask 077; echo bait >~/bait'
	begin a alice login srun -N1 --mem=1500 berth run -q --deny-egress "$denied/32" --image $image -- \
		bash $here/escape.sh /home/alice/bait /home/bob/bait "$denied:6817" "$allowed:6818"
	ends a 0
	for pod in plain slow network privileged; do
		[[ $(grep -cE "^$pod (kept|reached):" "$out/a") == 16 ]] || fail "not 16 attempts of $pod: $(cat "$out/a")"
		says a "$pod reached: an address allowed: a connection"
	done
	grep -E '^(plain|slow|network) reached:' "$out/a" | grep -v 'an address allowed' >"$out/reached"
	[[ ! -s $out/reached ]] || fail "$(cat "$out/reached")"
	# Else the attempts above would show nothing.
	says a "privileged reached: the user's file: /proc/PID/root"
	says a "privileged reached: another pod's volume: /proc/PID/root"
	says a "privileged reached: the cluster's keys: /proc/PID/root"
	says a "privileged reached: another pod's process: ptrace"
	says a "privileged reached: sockets of the node: "
	[[ $(grep -c '^privileged reached:' "$out/a") == 6 ]] || fail "$(grep '^privileged' "$out/a")"
	says a 'linked {"waiting":{"message":"failed to prepare subPath'
	"$bed" run --user bob n1 rm /home/bob/bait
}

# Non-root users of pods cannot write to folders on network file systems, where no
# quota would count their files. FUSE represents a network file system.
owners() {
	begin a alice login srun -N1 --mem=1500 berth run --image $image -- bash $here/data.sh REFUSED
	ends a 0
	says a 'files have the owners that they should'
	begin b alice login srun -N1 --mem=1500 berth run --foreign-owners --image $image -- bash $here/data.sh ALLOWED
	ends b 0
	says b 'files have the owners that they should'
	node rm -rf /srv/shared/alice /var/tmp/of-alice
}

# A folder for every pod, on every node.
mounts() {
	"$bed" run --user alice login mkdir -p /srv/shared/alice
	begin a alice login srun -N3 --mem=1500 --chdir=/srv/shared berth run --mount alice:/data --mount /etc/slurm:ro --image $image -- sh -c '
		kubectl apply -f '$here/web.yaml' && kubectl rollout status --timeout=40s ds/web || exit 1
		for pod in $(kubectl get pods -o name); do
			kubectl exec $pod -- sh -c "hostname >/data/\$(hostname); ls /etc/slurm/slurm.conf; touch /etc/slurm/x 2>&1 | grep -o Read-only"
		done
		ls -l /srv/shared/alice'
	ends a 0
	[[ $(grep -c '^-rw.* alice .*web-' "$out/a") == 3 ]] || fail "not three files of alice: $(cat "$out/a")"
	[[ $(grep -c '^Read-only$' "$out/a") == 3 ]] || fail "not mounted read-only: $(cat "$out/a")"
	begin b alice login srun -N1 --mem=1500 berth run --mount /nowhere -- true
	ends b 66
	says b 'mount /nowhere into pods: stat /nowhere: no such file or directory'
	node rm -rf /srv/shared/alice
}

# An MPI program in pods of three nodes, and an srun step beside the cluster in the
# same allocation.
mpi() {
	begin a alice login srun -N3 --mem=1500 berth run --image /srv/ends/images/mpi.tar -- /srv/ends/examples/mpi/mpi.sh
	timeout=200
	ends a 0
	[[ $(grep -cE '^rank [012] of 3 on mpi-[012]$' "$out/a") == 3 ]] || fail "not three ranks on three pods: $(cat "$out/a")"
	says a 'the sum of all ranks is 3'
	begin b alice login salloc -Q -N3 --mem=1900 sh -c '
		berth run -- sh -c "touch ~/up; until [ -e ~/stepped ]; do sleep 0.1; done; kubectl get nodes -o name" &
		until [ -e ~/up ]; do sleep 0.1; done
		srun -N3 --overlap --mem=100 sh -c "echo step on \$SLURMD_NODENAME"
		touch ~/stepped
		wait'
	ends b 0
	[[ $(grep -c '^step on n[123]$' "$out/b") == 3 && $(grep -c '^node/n' "$out/b") == 3 ]] || fail "no step beside the cluster: $(cat "$out/b")"
	"$bed" run --user alice login rm -f up stepped
}

# A Helm chart with a custom resource and its operator.
operator() {
	span_berth a --image /srv/ends/images/operator.tar -- bash $here/operator.sh /srv/ends/chart
	timeout=200
	ends a 0
	says a 'the operator works'
}
