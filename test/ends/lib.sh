# shellcheck shell=bash
# Functions for the cases. A case is a function that runs one or more berths in
# the bed, ends them in one way, and checks the result. After each case nothing may
# be left on any host.

fails=0
out=$(mktemp -d "${TMPDIR:-/tmp}/ends-XXXXXX")
image=/srv/ends/images/busybox.tar
web_image=/srv/ends/images/web.tar
sif=/srv/ends/images/greeter.sif
here=/srv/ends/ends

say() { echo "    $*"; }

# fail prints the first error of a case; the rest of the case is skipped.
fail() {
	[[ $failed == yes ]] || say "FAILED: $*"
	failed=yes
}

# begin NAME USER HOST CMD... runs CMD in the background with its output in
# $out/NAME. A case may begin several. The shell in between is for nsenter, which
# stops itself when its child is stopped.
begin() {
	local name=$1 user=$2 host=$3
	shift 3
	# While a job is still leaving a node, Slurm would choose others, but cases expect
	# the first nodes.
	case $1 in srun | salloc | sbatch) await_no_jobs 5 --states=CG ;; esac
	: >"$out/$name"
	# Outside a job, a compute node represents a machine without Slurm.
	[[ $host == login ]] || set -- env BERTH_HERE=true "$@"
	timeout -k 1 "${longest_run:-300}" "$bed" run --user "$user" "$host" env PATH=/srv/ends/dist/bin:/usr/bin:/bin:/usr/sbin:/sbin \
		sh -c '"$@"; exit $?' sh "$@" >"$out/$name" 2>&1 </dev/null &
	pids[$name]=$!
}

# await_no_jobs SECONDS SQUEUE-OPTIONS... waits at most that long for jobs to end.
await_no_jobs() {
	local i most=$1
	shift
	for ((i = 0; i < 10 * most; i++)); do
		[[ -n $("$bed" run ctl squeue -h "$@") ]] || return 0
		sleep 0.1
	done
}

# berth NAME ARGS... begins a berth run in the current mode.
berth() {
	local name=$1
	shift
	case $mode in
	local) begin "$name" alice n1 berth run "$@" ;;
	step) begin "$name" alice login srun -N1 --mem="${memory:-1500}" ${limit:+--time="$limit"} berth run "$@" ;;
	esac
}

# poll SECONDS CMD...
poll() {
	[[ $failed == no ]] || return 1
	local deadline=$((SECONDS + $1))
	shift
	until "$@"; do
		((SECONDS < deadline)) || return 1
		sleep 0.05
	done
}

# says NAME TEXT waits until the output of the command of begin NAME contains TEXT.
says() {
	poll "${timeout:-100}" says_or_ended "$@" && grep -qF -- "$2" "$out/$1" ||
		fail "no '$2' in the output of $1: $(tail -n 12 "$out/$1")"
}

says_or_ended() { ended "$1" || grep -qF -- "$2" "$out/$1"; }

never_says() { ! grep -qF -- "$2" "$out/$1" || fail "'$2' in the output of $1"; }

# ends NAME CODE... waits until the command of begin NAME ends, and checks that its exit
# code is one of the codes.
ends() {
	local name=$1 code
	shift
	poll "${timeout:-100}" ended "$name" || fail "$name does not end: $(tail -n 12 "$out/$name")"
	wait "${pids[$name]}"
	code=$?
	[[ " $* " == *" $code "* ]] || fail "exit code $code of $name, want $*: $(tail -n 12 "$out/$name")"
}

ended() { ! kill -0 "${pids[$1]}" 2>/dev/null; }

# parts PART... prints the process ids of parts of the cluster on n1, as seen there.
parts() {
	local part
	for part in "$@"; do
		case $part in
		supervisor) node pgrep -f '^[^ ]*berth run ' ;;
		janitor) node pgrep -f '^berth sandbox-janitor' ;;
		init) node pgrep -f '^berth sandbox-init' ;;
		nets) node pgrep -f '^berth net-role' ;;
		net) node pgrep -o -f '^berth net-role' ;; # another process of that name keeps its descriptors
		parent) node pgrep -f '^berth command-parent' ;;
		control) node pgrep -f 'berth-kube control ' ;;
		node) node pgrep -f 'berth-kube node ' ;;
		containerd) node pgrep -f '/containerd --config' ;;
		layers) node pgrep -f '/berth-layers --notify-fd' ;;
		follower) node pgrep -f '^berth follow-role' ;;
		dns) node pgrep -f '/coredns -conf' ;;
		shim) node pgrep -f 'containerd-shim-berth-v2' ;;
		pause) node pgrep -f '^/pause' ;;
		esac
	done
}

node() { "$bed" run n1 "$@"; }

# signal SIG PART...
signal() {
	[[ $failed == no ]] || return 1
	local signal=$1 pids
	shift
	pids=$(parts "$@")
	[[ -n $pids ]] || {
		fail "no process of $* to signal"
		return 1
	}
	# One part may end together with another.
	# shellcheck disable=SC2086
	node kill "-$signal" $pids 2>/dev/null || [[ $# -gt 1 ]] || fail "send $signal to $*"
}

# job prints the id of the only job.
job() { "$bed" run ctl squeue -h -o %i | head -n 1; }

# kubectl ARGS... uses the kubeconfig $admin_conf as root, or that of alice's cluster on n1.
kubectl() {
	local user=alice
	[[ -z $admin_conf ]] || user=root
	"$bed" run --user $user n1 sh -c 'KUBECONFIG=${0:-$(ls /dev/shm/berth-*/*/kubeconfig)} exec timeout 20 /srv/ends/dist/libexec/berth/kubectl "$@"' "$admin_conf" "$@"
}

# case_ NAME runs the function of that name, then checks that nothing is left. It
# prints all output at its end, because other groups print, too.
case_() {
	local said began=$SECONDS word=ok
	try "$1" >"$out/said" 2>&1
	[[ $failed == no ]] || word=FAIL
	said=$(<"$out/said")
	printf '%s%-4s %s %s (%d s)\n' "${said:+$said$'\n'}" $word "$name" "$1" $((SECONDS - began))
}

try() { # CASE
	local left pid
	failed=no memory='' limit='' timeout='' admin_conf=''
	declare -gA pids=()
	"$1"
	for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null && wait "$pid"; done
	# The jobs of a failed case would make the next cases fail, too.
	[[ $failed == no ]] || cancel_jobs
	left=$(check) || {
		fail "left behind:"
		head -n 20 <<<"$left" | sed 's/^/      /'
		node sh -c 'pgrep -u alice,bob | xargs -r kill -KILL; rm -rf /tmp/berth-* /var/tmp/berth-* /dev/shm/berth-*'
	}
	if [[ $failed == yes ]]; then fails=$((fails + 1)); fi
}

cancel_jobs() {
	"$bed" run ctl sh -c 'for user in alice bob; do scancel --user "$user"; done'
	await_no_jobs 20
}

# check waits a moment for processes that are about to end, such as a janitor that
# outlives its supervisor.
check() {
	local left i
	for ((i = 0; i < 40; i++)); do
		left=$("$bed" check) && return 0
		sleep 0.1
	done
	echo "$left"
	return 1
}

# numbers_of_bed prints the bed's first user id and first subordinate id.
numbers_of_bed() {
	. test/bed/lib/settings.sh
	load_settings
	echo "$first_user $first_subordinate"
}

# machine_is_clean NUMBERS: after the bed is down, nothing of it is left outside its
# hosts either. It checks only users and names of this bed, as other beds may be up.
machine_is_clean() {
	local user=$1 subordinate=$2 state=/var/tmp/berth-bed/$BED_NAME left
	left=$(
		ps -e -o pid=,uid=,stat=,args= | cut -c1-200 | awk -v user="$user" -v subordinate="$subordinate" '
			$2 >= user && $2 < user + 100 || $2 >= subordinate && $2 < subordinate + 1000000 { print "process", $0 }'
		# Only a zombie, which the machine's init has not reaped yet, is in a cgroup that is removed.
		grep -sE "bed-$BED_NAME([/ ]|\$)|$state([/ ]|\$)" /proc/[0-9]*/{cgroup,mountinfo} | sed '/cgroup:.* (deleted)$/d; s/^/process or mount /'
		find /sys/fs/cgroup -name "bed-$BED_NAME" | sed 's/^/cgroup /'
		find /tmp /var/tmp /dev/shm /run -xdev -ignore_readdir_race \( -uid "+$((user - 1))" -uid "-$((user + 100))" \
			-o -uid "+$((subordinate - 1))" -uid "-$((subordinate + 1000000))" \) -printf 'file %p (uid %U)\n' 2>/dev/null
		[[ ! -e $state ]] || echo "file $state"
	)
	[[ -n $left ]] || return 0
	echo "left on the machine by the bed $BED_NAME:"
	head -n 20 <<<"$left" | sed 's/^/      /'
	return 1
}
