# shellcheck shell=bash
# Settings of a bed, its paths, addresses and users. A bed that is up has its
# settings in $state/settings, so that only BED_NAME is needed to find it.

say() { echo "bed: $*" >&2; }
die() {
	say "$*"
	exit 1
}

BED_NAME=${BED_NAME:-bed}
state_root=/var/tmp/berth-bed
state=$state_root/$BED_NAME
settings=(NODES PROCTRACK TASK ACCT CPUS MEM IPV6 RESOLVER LOCAL SHARED FOLDERS GPUS PROC_OPTIONS HOME_OPTIONS TMP_OPTIONS
	PROGRAMS NAMES MTUS CORES BED_BIND BED_LOGS BED_SLURM_CONF BED_PLUGSTACK BED_OCI number subnet first_user first_subordinate cgroup_kind cgroup_list)

# How many beds may be up at once.
numbers=99

# alice and bob have subordinate ids, listed by name. Only LDAP knows dave; his ids
# are listed by number, as on sites that generate /etc/subuid. carol has none.
users=(alice bob carol dave)

# An address that stands for the internet, reached through a router.
web_address=198.51.100.10 web_router=198.51.100.1
web_address6=2001:db8:ffff::10 web_router6=2001:db8:ffff::1

default_settings() {
	NODES=${1:-1}
	PROCTRACK=${PROCTRACK:-linuxproc}
	TASK=${TASK:-none}
	ACCT=${ACCT:-none}
	CPUS=${CPUS:-2}
	MEM=${MEM:-2000}
	IPV6=${IPV6:-off}
	RESOLVER=${RESOLVER:-ctl}
	LOCAL=${LOCAL:-disk}
	SHARED=${SHARED:-off}
	FOLDERS=${FOLDERS:-}
	GPUS=${GPUS:-0}
	PROC_OPTIONS=${PROC_OPTIONS:-}
	HOME_OPTIONS=${HOME_OPTIONS:-}
	TMP_OPTIONS=${TMP_OPTIONS:-}
	PROGRAMS=${PROGRAMS:-all}
	NAMES=${NAMES:-}
	MTUS=${MTUS:-}
	CORES=${CORES:-}
	BED_BIND=${BED_BIND:-}
	BED_LOGS=${BED_LOGS:-}
	BED_SLURM_CONF=${BED_SLURM_CONF:-}
	BED_PLUGSTACK=${BED_PLUGSTACK:-}
	BED_OCI=${BED_OCI:-}
}

# choose_number picks the number that distinguishes this bed's addresses and users
# from other beds that are up. The number follows from the name; where another bed
# has it, the next free one is used. Call it with the beds locked.
#
# Each bed has a network namespace, so addresses cannot clash, but different ones
# show in a log which bed a packet came from. User ids matter more: the kernel counts
# keys, processes and namespaces by them, machine-wide.
choose_number() {
	local taken first i
	taken=" $(cat "$state_root"/*/number 2>/dev/null | xargs || true) "
	first=$(($(cksum <<<"$BED_NAME" | cut -d' ' -f1) % numbers))
	for ((i = 0; i < numbers; i++)); do
		number=$(((first + i) % numbers))
		[[ $taken == *" $number "* ]] || break
	done
	[[ $i -lt $numbers ]] || die "$numbers beds are up: end one with $bed down"
	subnet=10.$((100 + number)).0
	first_user=$((6001 + number * 100))
	first_subordinate=$((10000000 + number * 1000000))
}

# id_of USER
id_of() {
	local i
	for i in "${!users[@]}"; do
		[[ ${users[i]} != "$1" ]] || echo $((first_user + i))
	done
}

validate_settings() {
	local problems=()
	[[ $NODES =~ ^[0-9]+$ && $NODES -ge 1 && $NODES -le 200 ]] ||
		problems+=("NODES is \"$NODES\": choose 1 to 200")
	[[ $BED_NAME =~ ^[a-z0-9][a-z0-9-]{0,30}$ ]] ||
		problems+=("BED_NAME is \"$BED_NAME\": use small letters, digits and dashes")
	one_of PROCTRACK linuxproc pgid cgroup
	one_of TASK none cgroup
	one_of ACCT none slurmdbd
	one_of IPV6 off on
	one_of RESOLVER ctl loopback
	one_of LOCAL disk tmpfs
	one_of PROGRAMS all few
	one_of GPUS 0 1 2
	one_of SHARED off fuse
	[[ -z $NAMES || $(wc -w <<<"$NAMES") -eq $NODES ]] ||
		problems+=("NAMES is \"$NAMES\": give a name for each of $NODES nodes")
	[[ $MTUS =~ ^[0-9\ ]*$ && $(wc -w <<<"$MTUS") =~ ^(0|$NODES)$ ]] ||
		problems+=("MTUS is \"$MTUS\": give a number for each of $NODES nodes")
	[[ $CORES =~ ^[0-9\ ]*$ && $(wc -w <<<"$CORES") =~ ^(0|$NODES)$ ]] ||
		problems+=("CORES is \"$CORES\": give a core of this machine for each of $NODES nodes")
	[[ -z $CORES || $PROCTRACK == cgroup && $TASK == none ]] ||
		problems+=("CORES needs PROCTRACK=cgroup, which has cpusets, and TASK=none: Slurm would choose cores itself")
	[[ $CPUS =~ ^[1-9][0-9]*$ ]] || problems+=("CPUS is \"$CPUS\": give a number of cores")
	[[ $MEM =~ ^[1-9][0-9]*$ ]] || problems+=("MEM is \"$MEM\": give a number of megabytes")
	[[ $FOLDERS =~ ^[a-z\ ]*$ ]] || problems+=("FOLDERS is \"$FOLDERS\": give names of lowercase letters")
	local bind
	for bind in $BED_BIND; do
		[[ $bind == /*:/* && -d ${bind%%:*} ]] ||
			problems+=("BED_BIND holds \"$bind\": give /existing/folder:/folder/in/hosts")
	done
	[[ ${#problems[@]} -eq 0 ]] || {
		printf 'bed: %s\n' "${problems[@]}" >&2
		exit 2
	}
}

one_of() {
	local variable=$1 value
	shift
	for value; do
		[[ ${!variable} != "$value" ]] || return 0
	done
	problems+=("$variable is \"${!variable}\": choose from $*")
}

# save_settings makes the declarations global, because a function reads them.
save_settings() { declare -p "${settings[@]}" | sed 's/^declare -[-x]*/declare -g/' >"$state/settings"; }

load_settings() {
	[[ -r $state/settings ]] || die "no bed named $BED_NAME is up: start it with $bed up"
	. "$state/settings"
}

host_names() {
	echo ctl
	echo login
	seq -f n%g 1 "$NODES"
}

# slurm_name_of HOST prints its name in Slurm.
slurm_name_of() {
	local names
	read -ra names <<<"$NAMES"
	echo "${names[${1#n} - 1]:-$1}"
}

# mtu_of HOST prints the MTU of its cable.
mtu_of() {
	local mtus
	read -ra mtus <<<"$MTUS"
	[[ $1 != n* ]] || echo "${mtus[${1#n} - 1]:-1500}"
	[[ $1 == n* ]] || echo 1500
}

# core_of HOST prints the core that the host is bound to, if there is one.
core_of() {
	local cores
	read -ra cores <<<"$CORES"
	[[ $1 != n* ]] || echo "${cores[${1#n} - 1]:-}"
}

address_of() {
	case $1 in
	router) echo "$subnet.254" ;;
	ctl) echo "$subnet.1" ;;
	login) echo "$subnet.2" ;;
	n*) echo "$subnet.$((10 + ${1#n}))" ;;
	esac
}

# address6_of HOST prints its global address, in the range for documentation. It ends
# in the last number of the other address.
address6_of() {
	local address network=${subnet%.0}
	address=$(address_of "$1")
	echo "2001:db8:${network#10.}::${address##*.}"
}

need_root() {
	[[ $EUID -eq 0 ]] || die "root is needed (namespaces, mounts, Slurm's daemons): sudo -E $bed $*"
}

need_programs() {
	local missing=() program
	for program in slurmctld slurmd slurmdbd sinfo munged mariadbd slapd slapadd nslcd \
		dnsmasq socat busybox bindfs ip nft newuidmap unshare nsenter setpriv lsns ps; do
		command -v "$program" >/dev/null || missing+=("$program")
	done
	[[ ${#missing[@]} -eq 0 ]] ||
		die "missing: ${missing[*]}; install them with $(readlink -f "$lib/../../../scripts/install-deps") bed"
}

# await SECONDS CMD... waits until CMD succeeds; false at the deadline.
await() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@" 2>/dev/null; do
		[[ $SECONDS -lt $deadline ]] || return 1
		sleep 0.03
	done
}
