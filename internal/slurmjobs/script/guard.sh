#!/bin/bash -p
# berth made this batch script for @OBJECT@.
# It runs the object's own script once, as it is: @SCRIPT@
folder=@FOLDER@
given=$PATH
PATH=/usr/bin:/bin${PATH:+:$PATH}
part=${SLURM_ARRAY_TASK_ID:+.$SLURM_ARRAY_TASK_ID}
id=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}
node=${SLURMD_NODENAME:-$HOSTNAME}

# Only one job may make this link. A requeued job finds its own number there.
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
	echo "berth: job $owner has this object already, so job $id does nothing" >&2
	exit 69
fi
rm -f -- "$folder/end$part"
echo "$(date +%s) $node" >>"$folder/starts$part" || echo "berth: node $node cannot record the start of job $id in $folder" >&2

# In the background a shell ignores SIGINT and SIGQUIT, and closes the standard input.
begin() { (
	trap - $signals
	"$@"
) <&0 2>&3 3>&- & }
# The shell itself prints nothing, such as "Killed", until the end.
exec 3>&2 2>/dev/null

# Slurm sends some signals to this shell only, and others to all processes of the job. The
# canary shows which: it ends with every signal. This shell passes on only what the canary
# has not received.
canary() {
	begin exec sleep 2147483647 </dev/null >/dev/null 3>&1
	canary=$!
}
pass() {
	local name value pending
	# A signal that has been sent may not have ended the canary yet.
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
		# 127: the end was seen before, together with a signal.
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
