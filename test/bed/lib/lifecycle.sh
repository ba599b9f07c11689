# shellcheck shell=bash
# From `up` to `down`. The processes of a bed, and which ends which:
#
#   bed up            ends when all nodes are idle. Until then its end, even
#    │                by kill -9, closes a pipe, and the cleaner gives up.
#   cleaner           waits for the supervisor's end, then removes cgroups and
#    │                files. Its own end closes another pipe:
#   supervisor        PID 1 of the bed's PID namespace; removes the rest itself.
#    └─ host ...      PID 1 of a PID namespace each: daemons, jobs.
#
# So whichever single process is killed, nothing is left. If several are in one
# instant, no process survives, and the next `down` or `up` removes the rest.

bed_up() {
	need_root up
	default_settings "$@"
	validate_settings
	need_programs
	# A cleaner without its supervisor is clearing up, and about to end.
	local i
	for ((i = 0; i < 600; i++)); do
		alive cleaner && ! alive supervisor || break
		sleep 0.1
	done
	! alive cleaner || die "bed $BED_NAME is up already: see $bed status, or choose another BED_NAME"
	! alive up || die "bed $BED_NAME is being started by another process: wait, or choose another BED_NAME"
	instance=$(current_instance)
	remove_remains || die "cgroups or files of a former bed $BED_NAME cannot be removed: is a process of it in D state?"
	choose_cgroup_kind
	claim_state
	trap 'bed_up_failed' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	write_config
	make_cgroups
	save_settings

	exec {lifeline}> >(become_daemon cleaner)
	echo $! >"$state/pid/cleaner"
	await 60 alive cleaner || die "the cleaner did not start"
	wait_until_idle "$lifeline"
	echo keep >&"$lifeline"
	rm "$state/pid/up"
	trap - EXIT INT TERM HUP
	say "$BED_NAME is up: ctl, login, $(host_names | tail -n +3 | xargs); try: BED_NAME=$BED_NAME $bed run --user alice login srun -N$NODES hostname"
}

# claim_state makes the folder with the pid of `up` and the bed's number. It fails
# where another `up` has just made it: the rename succeeds for only one of them.
claim_state() {
	local new=$state_root/.$BED_NAME.$$ lock
	exec {lock}</var/tmp
	flock "$lock"
	choose_number
	mkdir -p "$new/pid"
	echo $$ >"$new/pid/up"
	instance=$$.$EPOCHREALTIME
	echo "$instance" >"$new/instance"
	echo "$number" >"$new/number"
	mv -T "$new" "$state" 2>/dev/null || {
		rm -rf "$new"
		die "bed $BED_NAME is being started by another process: wait, or choose another BED_NAME"
	}
	exec {lock}>&-
}

bed_up_failed() {
	trap '' INT TERM HUP
	say "up failed; the last lines of the logs:"
	show_logs 5 cleaner.log ${suspect:-ctl} >&2 || true
	[[ -z ${lifeline:-} ]] || exec {lifeline}>&-
	take_down || say "something of bed $BED_NAME remains: see $bed status"
}

# become_daemon ROLE ARG... replaces the shell by bed in that role, in a new session
# and without the caller's descriptors. A test that reads the output of `bed up`
# through a pipe must see it end.
become_daemon() {
	local fd
	exec >>"$state/log/$1.log" 2>&1
	for fd in /proc/self/fd/*; do
		fd=${fd##*/}
		[[ $fd -le 2 || $fd -eq 255 ]] || exec {fd}>&-
	done
	cd /
	# The daemons must not inherit the caller's environment, for example SLURM_CONF.
	exec setsid env -i BED_NAME="$BED_NAME" PATH="$PATH" LC_ALL=C "$bed" "$@"
}

wait_until_idle() {
	# The limit is long, for slow and busy machines. A process that dies ends the wait.
	local limit=$((120 + NODES))
	local name
	for name in $(host_names); do
		await $limit is_ready_or_dead "$name" && alive "$name" || {
			suspect=$name
			die "host $name did not start"
		}
	done
	await $limit all_idle || {
		inside ctl sinfo -N >&2 || true
		die "after $limit s not all $NODES nodes are idle"
	}
	alive cleaner || die "the bed ended while it was starting"
	await 60 inside login getent passwd dave >/dev/null || die "login cannot look up dave in LDAP"
}

is_ready_or_dead() {
	alive cleaner || return 0
	[[ -s $state/pid/$1 ]] || return 1
	! alive "$1" || inside "$1" test -e /run/bed/ready
}

all_idle() { ! alive cleaner || [[ $(inside ctl timeout 5 sinfo -h -t idle -o %D) == "$NODES" ]]; }

# cleaner runs apart from the terminal, its stdin connected to `up`.
cleaner() {
	load_settings
	instance=$(current_instance)
	local lifeline word=
	trap 'kill_all' TERM INT HUP
	exec {lifeline}> >(exec unshare -m -n -p -f --kill-child --propagation private \
		"$bed" supervisor)
	supervisor=$!
	read -r word || true
	[[ $word == keep ]] || kill_all
	# wait returns early for a signal with a trap.
	while kill -0 "$supervisor" 2>/dev/null; do
		wait "$supervisor" || true
	done
	remove_remains
}

kill_all() {
	kill -KILL "$supervisor" 2>/dev/null || true
	kill_cgroups
}

# take_down asks the cleaner, or does the work itself if there is none.
take_down() {
	local cleaner
	if alive cleaner; then
		cleaner=$(<"$state/pid/cleaner")
		kill -TERM "$cleaner"
		await 60 ended "$cleaner" cleaner || kill -KILL "$cleaner"
	fi
	remove_remains
}

bed_down() {
	need_root down
	local rc=0 up
	if alive up; then
		up=$(<"$state/pid/up")
		kill -TERM "$up"
		await 60 ended "$up" up || true
	fi
	instance=$(current_instance)
	if [[ ! -d $state ]]; then
		remove_remains
		say "no bed named $BED_NAME is up"
		return
	fi
	[[ ${1:-} != --check ]] || bed_check || rc=1
	take_down || die "bed $BED_NAME: cgroups or files remain; is a process of it in D state? see $bed status"
	return $rc
}

# remove_remains may be called at any time, and by several processes at once. It
# touches only the bed that the caller knew: a slow caller must not hit the next bed
# of that name.
remove_remains() (
	exec {lock}</var/tmp
	flock "$lock"
	[[ $(current_instance) == "$instance" ]] || return 0
	kill_cgroups
	await 60 remove_cgroups || return 1
	[[ -d $state ]] || return 0
	logs=$(. "$state/settings" 2>/dev/null && echo "${BED_LOGS:-}") || true
	if [[ -n $logs ]]; then
		mkdir -p "$logs" && cp -r "$state/log/." "$logs/" || true
	fi
	await 60 remove_files || return 1
	rmdir "$state_root" 2>/dev/null || true
)

# current_instance prints an id that differs from former beds of the same name.
current_instance() { cat "$state/instance" 2>/dev/null || true; }

remove_files() { rm -rf --one-file-system -- "$state"; }

# alive ROLE reports whether the process of a role or host runs. Another process with the
# same pid does not count.
alive() {
	local pid groups=
	read -r pid 2>/dev/null <"$state/pid/$1" || return 1
	case $1 in
	up | cleaner | supervisor) ! ended "$pid" "$1" ;;
	*)
		read -rd '' groups 2>/dev/null <"/proc/$pid/cgroup" || true # the file ends without NUL
		[[ $groups$'\n' == *"/bed-$BED_NAME/$1"[/$'\n']* ]]
		;;
	esac
}

# ended PID COMMAND reports whether the process has ended, or its pid belongs to another
# command. The command line is empty after the end (a zombie), and for a moment while the
# process executes a program.
ended() {
	local command stat
	command=$(tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline") || true
	[[ -z $command ]] || { [[ $command != *" $2 "* ]]; return; }
	read -r stat 2>/dev/null <"/proc/$1/stat" || return 0
	[[ ${stat##*) } == [ZX]* ]]
}

bed_status() {
	need_root status
	load_settings
	echo "bed $BED_NAME: PROCTRACK=$PROCTRACK TASK=$TASK ACCT=$ACCT CPUS=$CPUS MEM=$MEM RESOLVER=$RESOLVER cgroups=$cgroup_kind"
	echo "files: $state"
	local name states
	states=$(inside ctl timeout 5 sinfo -h -N -o '%N %T' 2>/dev/null) || states=
	{
		echo "HOST PID ADDRESS PROCESSES STATE"
		for name in cleaner supervisor $(host_names); do
			echo "$name $(cat "$state/pid/$name" 2>/dev/null || echo -)" \
				"$(address_of "$name" | grep . || echo -) $(count_processes "$name")" \
				"$(alive "$name" && { awk -v n="$name" '$1 == n { print $2; f = 1 } END { if (!f) print "up" }' <<<"$states"; } || echo dead)"
		done
	} | column -t
}

count_processes() {
	local at
	at=$(hierarchies | sed -n 's/^unified //p')/bed-$BED_NAME/$1
	if [[ -d $at ]]; then
		find "$at" -name cgroup.procs -exec cat {} + | wc -l
	else
		echo 1
	fi
}

bed_logs() {
	load_settings
	show_logs 1000000 "$@"
}

# show_logs LINES [HOST...]
show_logs() (
	lines=$1
	shift
	cd "$state/log" || exit
	find "${@:-.}" -type f -size +0 -exec tail -v -n "$lines" {} +
)
