#!/bin/bash -p
# berth wrote this batch script for the object @OBJECT@.
# It runs the object's own script, unchanged, in one job only: @SCRIPT@
folder=@FOLDER@
given=$PATH
PATH=/usr/bin:/bin${PATH:+:$PATH}
part=${SLURM_ARRAY_TASK_ID:+.$SLURM_ARRAY_TASK_ID}
id=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}
node=${SLURMD_NODENAME:-$HOSTNAME}

# Only one job can create this link. A requeued job finds its own number there.
if ! why=$(LC_ALL=C ln -sn -- "$id" "$folder/owner$part" 2>&1) && [ ! -L "$folder/owner$part" ]; then
	if [ ! -d "$folder" ]; then
		echo "berth: node $node does not see $folder, so the script was not run: start 'berth slurm-jobs' with --state-dir on a file system that all nodes share" >&2
		exit 69
	fi
	echo "berth: node $node cannot write $folder, so the script was not run: $why" >&2
	exit 73
fi
owner=$(readlink -- "$folder/owner$part")
if [ "$owner" != "$id" ]; then
	echo "berth: this object already has job $owner, so job $id does nothing" >&2
	exit 69
fi
rm -f -- "$folder/end$part"
echo "$(date +%s) $node" >>"$folder/starts$part" || echo "berth: node $node cannot record the start of job $id in $folder" >&2

# begin runs a command in the background. Bash would ignore SIGINT and SIGQUIT there, and read
# from /dev/null.
begin() { (
	trap - $signals
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
	canary=$!
}
# pass sends a signal to the script, unless the script has received it from Slurm.
pass() {
	local name value pending
	# A signal that was sent to the canary may not have ended it yet.
	for _ in 1 2 3 4 5; do
		pending=
		while read -r name value; do [ "$name" != ShdPnd: ] || pending=${value//0/}; done <"/proc/$canary/status"
		[ -n "$pending" ] || break
		pause
	done
	if kill -0 "$canary"; then
		kill -s "$1" "$child"
		return
	fi
	wait "$canary"
	[ "$(kill -l $?)" = "$1" ] || kill -s "$1" "$child"
	canary
}
# pause waits 0.2 s, whatever signals arrive.
pause() {
	(
		trap '' $signals
		exec sleep 0.2
	) &
	while kill -0 $!; do wait $!; done
}
signals='HUP INT QUIT ABRT ALRM TERM USR1 USR2 XCPU'
canary
# Only the object's script has these variables: they could break this one, and sbatch.
script() {
	PATH=$given@ENVIRONMENT@
	exec @COMMAND@ "$@"
}
begin script "$@"
child=$!
received=
for signal in $signals; do trap "received+=' $signal'" "$signal"; done
code=127
while :; do
	# Bash may forget a signal that arrives less than 0.2 s after another.
	[ -n "$received" ] || {
		wait "$child"
		status=$?
		# 127: an earlier wait has already returned the script's exit code.
		[ $status = 127 ] || code=$status
	}
	[ -n "$received" ] || break
	pause
	list=$received
	received=
	for signal in $list; do pass "$signal"; done
done
trap '' $signals
kill -9 "$canary"
wait "$canary"
exec 2>&3

end=$folder/.end$part.$id
if ! { echo "$code $(date +%s)" >"$end" && mv -f -- "$end" "$folder/end$part"; }; then
	echo "berth: node $node cannot record the end of job $id in $folder" >&2
fi
exit "$code"
