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
settings=(NODES PROCTRACK TASK ACCT CPUS MEM RESOLVER LOCAL PROC_OPTIONS HOME_OPTIONS TMP_OPTIONS
	PROGRAMS BED_BIND BED_LOGS BED_SLURM_CONF number subnet first_user first_subordinate cgroup_kind)

# alice and bob have subordinate ids, listed by name. dave is known to LDAP
# alone; his are listed by number, as on sites that generate /etc/subuid.
# carol has none.
users=(alice bob carol dave)

# An address that stands for the internet, reached through a router.
web_address=198.51.100.10 web_router=198.51.100.1

default_settings() {
	NODES=${1:-1}
	PROCTRACK=${PROCTRACK:-linuxproc}
	TASK=${TASK:-none}
	ACCT=${ACCT:-none}
	CPUS=${CPUS:-2}
	MEM=${MEM:-2000}
	RESOLVER=${RESOLVER:-ctl}
	LOCAL=${LOCAL:-disk}
	PROC_OPTIONS=${PROC_OPTIONS:-}
	HOME_OPTIONS=${HOME_OPTIONS:-}
	TMP_OPTIONS=${TMP_OPTIONS:-}
	PROGRAMS=${PROGRAMS:-all}
	BED_BIND=${BED_BIND:-}
	BED_LOGS=${BED_LOGS:-}
	BED_SLURM_CONF=${BED_SLURM_CONF:-}
	# Each bed has a network namespace, so addresses cannot clash; different ones
	# keep it visible in a log whose packet it was. Users' numbers matter more:
	# the kernel counts keys, processes and namespaces by them, machine-wide.
	number=$(($(cksum <<<"$BED_NAME" | cut -d' ' -f1) % 99))
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
	one_of RESOLVER ctl loopback
	one_of LOCAL disk tmpfs
	one_of PROGRAMS all few
	[[ $CPUS =~ ^[1-9][0-9]*$ ]] || problems+=("CPUS is \"$CPUS\": give a number of cores")
	[[ $MEM =~ ^[1-9][0-9]*$ ]] || problems+=("MEM is \"$MEM\": give a number of megabytes")
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

save_settings() { declare -p "${settings[@]}" >"$state/settings"; }

# The file holds plain declarations, which are local to a function that reads
# them: -g makes them global.
load_settings() {
	[[ -r $state/settings ]] || die "no bed named $BED_NAME is up: start it with $bed up"
	. <(sed 's/^declare -[-x]*/declare -g/' "$state/settings")
}

host_names() {
	echo ctl
	echo login
	seq -f n%g 1 "$NODES"
}

address_of() {
	case $1 in
	router) echo "$subnet.254" ;;
	ctl) echo "$subnet.1" ;;
	login) echo "$subnet.2" ;;
	n*) echo "$subnet.$((10 + ${1#n}))" ;;
	esac
}

need_root() {
	[[ $EUID -eq 0 ]] || die "root is needed (namespaces, mounts, Slurm's daemons): sudo -E $bed $*"
}

need_programs() {
	local missing=() program
	for program in slurmctld slurmd slurmdbd sinfo munged mariadbd slapd slapadd nslcd \
		dnsmasq socat busybox ip nft newuidmap unshare nsenter setpriv lsns ps; do
		command -v "$program" >/dev/null || missing+=("$program")
	done
	[[ ${#missing[@]} -eq 0 ]] ||
		die "missing: ${missing[*]}; install them with $(readlink -f "$lib/../../../scripts/install-deps") bed"
}

# await SECONDS CMD...: until CMD succeeds; false at the deadline.
await() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@" 2>/dev/null; do
		[[ $SECONDS -lt $deadline ]] || return 1
		sleep 0.03
	done
}
