# shellcheck shell=bash
# Commands inside a host.

bed_run() {
	local user=root host
	if [[ ${1:-} == --user ]]; then
		user=${2:-}
		shift 2
	fi
	host=${1:-}
	[[ -n $host ]] || { usage >&2; exit 2; }
	shift
	need_root run
	load_settings
	alive "$host" || die "bed $BED_NAME has no host $host that is up: see $bed status"
	enter "$host" bash -c "$(declare -f login); login \"\$@\"" bed "${TERM:-dumb}" "$user" "$@"
}

bed_cut() { set_port "${1:-}" down; }
bed_mend() { set_port "${1:-}" up; }

# set_port HOST up|down acts on the switch's side: the host sees a network that
# does not answer.
set_port() {
	[[ -n $1 ]] || { usage >&2; exit 2; }
	need_root "$2"
	load_settings
	alive "$1" || die "bed $BED_NAME has no host $1 that is up: see $bed status"
	nsenter -t "$(cat "$state/pid/supervisor")" -n ip link set "v-$1" "$2"
}

# bed_lose HOST kills a host, and returns when nothing of it is left.
bed_lose() {
	[[ -n ${1:-} ]] || { usage >&2; exit 2; }
	need_root lose
	load_settings
	alive "$1" || die "bed $BED_NAME has no host $1 that is up: see $bed status"
	kill -KILL "$(cat "$state/pid/$1")"
	await 60 is_lost "$1" || die "something of host $1 is left after its end"
}

is_lost() { ! alive "$1" && ! nsenter -t "$(cat "$state/pid/supervisor")" -n ip link show "v-$1" >/dev/null 2>&1; }

# bed_start HOST starts a lost host, and returns when it is ready, as `up` does.
bed_start() {
	[[ -n ${1:-} ]] || { usage >&2; exit 2; }
	need_root start
	load_settings
	[[ " $(host_names | xargs) " == *" $1 "* ]] || die "bed $BED_NAME has no host $1"
	! alive "$1" || die "host $1 of bed $BED_NAME is up: see $bed status"
	rm -f "$state/pid/$1"
	(become_daemon power "$1") &
	await 120 is_ready_or_dead "$1" && alive "$1" || die "host $1 did not start: see $bed logs power.log"
}

# power HOST starts a host from the supervisor's namespaces.
power() {
	load_settings
	local supervisor
	supervisor=$(cat "$state/pid/supervisor")
	clear_cgroups "$1"
	export bed_router=/proc/$supervisor/ns/net
	raise_limits
	unshare_cgroups "$1" nsenter -t "$supervisor" -m -n -p -- unshare -m -u -i -n -p -f --kill-child --propagation private \
		"$bed" host "$1"
}

# enter HOST CMD... becomes CMD, in all namespaces and cgroups of the host, as
# its root; inside does the same as a child.
enter() {
	local pid
	read -r pid <"$state/pid/$1"
	join_cgroups "$1"
	shift
	exec nsenter -t "$pid" -a -- "$@"
}

inside() { (enter "$@"); }

# login TERM USER [CMD...] runs inside the host, and becomes CMD with what a
# login gives: the user's ids, groups, home folder and a clean environment.
# When `bed run` is ended, CMD gets SIGTERM, so that it can clean up.
login() {
	local term=$1 user=$2 entry uid gid home shell path=/usr/local/bin:/usr/bin:/bin
	shift 2
	# getent is for LDAP, and takes longer.
	while read -r entry && [[ $entry != "$user":* ]]; do :; done </etc/passwd
	[[ $entry == "$user":* ]] || entry=$(getent passwd "$user") || {
		echo "bed: no user $user on $(hostname)" >&2
		exit 1
	}
	IFS=: read -r _ _ uid gid _ home shell <<<"$entry"
	[[ $uid -ne 0 ]] || path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
	cd "$home" || exit 1
	[[ $# -gt 0 ]] || set -- "$shell" -l
	ulimit -Sn 1024
	exec setpriv --pdeathsig TERM --reuid "$uid" --regid "$gid" --init-groups -- env -i \
		HOME="$home" USER="$user" LOGNAME="$user" SHELL="$shell" PATH=$path \
		TERM="$term" LANG=C.UTF-8 "$@"
}
