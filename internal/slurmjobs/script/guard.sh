#!/bin/bash -p
# berth wrote this batch script for the object @OBJECT@.
# It runs the object's own script, unchanged, in one job only: @SCRIPT@
#
# A variable of this script would replace one of the job's environment that has the same name,
# so all of them begin with berth_, and the object's script does not get them.
berth_folder=@FOLDER@
berth_given=$PATH
PATH=/usr/bin:/bin${PATH:+:$PATH}
berth_part=${SLURM_ARRAY_TASK_ID:+.$SLURM_ARRAY_TASK_ID}
berth_id=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}
berth_node=${SLURMD_NODENAME:-$HOSTNAME}

# Only one job can create this link. A requeued job finds its own number there.
if ! berth_why=$(LC_ALL=C ln -sn -- "$berth_id" "$berth_folder/owner$berth_part" 2>&1) && [ ! -L "$berth_folder/owner$berth_part" ]; then
	if [ ! -d "$berth_folder" ]; then
		echo "berth: node $berth_node does not see $berth_folder, so the script was not run: start 'berth slurm-jobs' with --state-dir on a file system that all nodes share" >&2
		exit 69
	fi
	echo "berth: node $berth_node cannot write $berth_folder, so the script was not run: $berth_why" >&2
	exit 73
fi
berth_owner=$(readlink -- "$berth_folder/owner$berth_part")
if [ "$berth_owner" != "$berth_id" ]; then
	echo "berth: this object already has job $berth_owner, so job $berth_id does nothing" >&2
	exit 69
fi
rm -f -- "$berth_folder/end$berth_part"
echo "$(date +%s) $berth_node" >>"$berth_folder/starts$berth_part" || echo "berth: node $berth_node cannot record the start of job $berth_id in $berth_folder" >&2

# begin runs a command in the background. Bash would ignore SIGINT and SIGQUIT there, and read
# from /dev/null.
begin() { (
	trap - $berth_signals
	"$@"
) <&0 2>&3 3>&- & }
# Messages of this shell, such as "Killed", are not for the job's output. Descriptor 3 keeps the
# standard error for the script.
exec 3>&2 2>/dev/null

# Slurm sends some signals to this shell only, and others to all processes of the job. The
# canary tells them apart: it is a process that every signal ends. This shell passes on only
# the signals that the canary did not receive.
canary() {
	begin exec sleep 2147483647 </dev/null >/dev/null 3>&1
	berth_canary=$!
}
# pass sends a signal to the script, unless the script has received it from Slurm.
pass() {
	local name value pending
	# A signal that was sent to the canary may not have ended it yet.
	for _ in 1 2 3 4 5; do
		pending=
		while read -r name value; do [ "$name" != ShdPnd: ] || pending=${value//0/}; done <"/proc/$berth_canary/status"
		[ -n "$pending" ] || break
		pause
	done
	if kill -0 "$berth_canary"; then
		kill -s "$1" "$berth_child"
		return
	fi
	wait "$berth_canary"
	[ "$(kill -l $?)" = "$1" ] || kill -s "$1" "$berth_child"
	canary
}
# pause waits 0.2 s, whatever signals arrive.
pause() {
	(
		trap '' $berth_signals
		exec sleep 0.2
	) &
	while kill -0 $!; do wait $!; done
}
berth_signals='HUP INT QUIT ABRT ALRM TERM USR1 USR2 XCPU'
canary
# Only the object's script has these variables: they could break this one, and sbatch.
script() {
	PATH=$berth_given
	unset "${!berth_@}"@ENVIRONMENT@
	exec @COMMAND@ "$@"
}
begin script "$@"
berth_child=$!
berth_received=
for berth_signal in $berth_signals; do trap "berth_received+=' $berth_signal'" "$berth_signal"; done
berth_code=127
while :; do
	# Bash may forget a signal that arrives less than 0.2 s after another.
	[ -n "$berth_received" ] || {
		wait "$berth_child"
		berth_status=$?
		# 127: an earlier wait has already returned the script's exit code.
		[ $berth_status = 127 ] || berth_code=$berth_status
	}
	[ -n "$berth_received" ] || break
	pause
	berth_list=$berth_received
	berth_received=
	for berth_signal in $berth_list; do pass "$berth_signal"; done
done
trap '' $berth_signals
kill -9 "$berth_canary"
wait "$berth_canary"
exec 2>&3

berth_end=$berth_folder/.end$berth_part.$berth_id
if ! { echo "$berth_code $(date +%s)" >"$berth_end" && mv -f -- "$berth_end" "$berth_folder/end$berth_part"; }; then
	echo "berth: node $berth_node cannot record the end of job $berth_id in $berth_folder" >&2
fi
exit "$berth_code"
