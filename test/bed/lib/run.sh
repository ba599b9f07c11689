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

# enter HOST CMD... becomes CMD, in all namespaces and cgroups of the host, as
# its root; inside does the same as a child.
enter() {
	local pid
	pid=$(cat "$state/pid/$1")
	join_cgroups "$1"
	shift
	exec nsenter -t "$pid" -a -- "$@"
}

inside() { (enter "$@"); }

# login TERM USER [CMD...] runs inside the host, and becomes CMD with what a
# login gives: the user's ids, groups, home folder and a clean environment.
# Who ends `bed run` ends CMD: by SIGTERM, so that it can clean up.
login() {
	local term=$1 user=$2 entry uid gid home shell path=/usr/local/bin:/usr/bin:/bin
	shift 2
	entry=$(getent passwd "$user") || {
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
