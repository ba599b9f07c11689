# shellcheck shell=bash
# Lists what jobs left behind. The tests call it after every job: a process, mount,
# namespace, cgroup, file or IPC object that outlives its job is a defect of the
# program in it.

# bed_check [--now] [HOST...]: exit 0 and silence when there is nothing.
bed_check() {
	local now=no host hosts left=0
	[[ ${1:-} != --now ]] || {
		now=yes
		shift
	}
	need_root check
	load_settings
	hosts=("$@")
	[[ $# -gt 0 ]] || mapfile -t hosts < <(host_names)
	# Slurm itself takes a moment to end a job; the job's processes do not get that
	# moment.
	[[ $now == yes ]] || await 120 no_jobs || true
	no_jobs || {
		inside ctl squeue -h -o 'ctl: job %i of %u: %T on %N'
		left=1
	}
	list_keys || left=1
	for host in "${hosts[@]}"; do
		alive "$host" || {
			echo "$host: the host is not up"
			left=1
			continue
		}
		inside "$host" bash -c "$(declare -f list_left); list_left $host $first_user" ||
			left=1
	done
	return $left
}

# no_jobs fails, too, if Slurm does not answer.
no_jobs() {
	local jobs
	jobs=$(inside ctl timeout 60 squeue -h) && [[ -z $jobs ]]
}

# list_keys prints the keys that users of the bed have left, and fails if there are any.
# The kernel keeps keys by user, for all hosts together. It makes a user's _uid keyrings
# at the first use of any keyring, so these do not count.
list_keys() {
	local uid keys left=0
	while read -r uid; do
		keys=$(setpriv --reuid "$uid" --clear-groups cat /proc/keys |
			awk -v uid="$uid" '$6 == uid && $9 !~ /^_uid/ { print "machine: key of uid " uid ":", $8, $9 }')
		[[ -z $keys ]] || {
			echo "$keys"
			left=1
		}
	done < <(awk -v user="$first_user" -v subordinate="$first_subordinate" '
		{ uid = $1 + 0 }
		uid >= user && uid < user + 100 || uid >= subordinate && uid < subordinate + 1000000 { print uid }
	' /proc/key-users)
	return $left
}

# list_left HOST FIRST-USER prints what is left on a host, and fails if there is
# anything. It runs inside the host, as its root.
list_left() {
	local host=$1 first=$2 found namespaces own
	# lsns prints nothing, not even an error, when a process ends while it reads.
	own=$(readlink /proc/1/ns/net | tr -dc 0-9)
	until namespaces=$(lsns -n -o NS,TYPE,PID,COMMAND) && [[ $namespaces == *$own* ]]; do sleep 0.1; done
	found=$(
		# All user ids and subordinate ids of the bed are from $first on, but so is
		# slurm's, 64030.
		ps -e -o pid=,uid=,stat=,comm=,args= | cut -c1-200 | awk -v first="$first" -v slurm="$(id -u slurm)" \
			'$2 >= first && $2 != slurm || $4 == "slurmstepd" { print "process", $0 }'

		grep -vE "^ *($(readlink /proc/1/ns/* | tr -dc '0-9\n' | sort -u | paste -sd'|')) " <<<"$namespaces" | sed 's/^/namespace /'

		awk '{ print $5 }' /proc/1/mountinfo | grep -vxFf /run/bed/mounts | sed 's/^/mount /'
		ip -o link | grep -vE '^[0-9]+: (lo|eth0@)' | cut -d: -f2 | sed 's/^/interface/'
		# Slurm 22.05 leaves empty groups that it made itself: on version 2 all of
		# them, on version 1 a job's, since it tries rmdir again five times, without
		# a pause, while the kernel still counts what has ended (common_cgroup_delete).
		slurms='/job_[0-9]+(/step_[a-z0-9]+(/(slurm|user)(/task_[a-z0-9]+)?)?)?$'
		find /sys/fs/cgroup -type d | grep -E '/(job_|step_|task_)|/berth' | while read -r dir; do
			if [[ -e $dir/cgroup.events ]]; then
				[[ $dir =~ $slurms ]] && grep -q 'populated 0' "$dir/cgroup.events" && continue
			elif [[ $dir =~ /job_[0-9]+$ && -z $(find "$dir" -mindepth 1 -type d) && -z $(cat "$dir/cgroup.procs" 2>/dev/null) ]]; then
				continue
			fi
			echo "cgroup $dir"
		done
		tail -qn +2 /proc/sysvipc/{shm,sem,msg} | sed 's/^/ipc /'
		find /tmp /var/tmp /dev/shm /dev/mqueue -mindepth 1 -printf 'file %p (uid %U)\n'
		find /run -xdev -uid +$((first - 1)) ! -user slurm -printf 'file %p (uid %U)\n'
		find /var/spool -path '*/slurmd/job*' -prune -printf 'file %p (uid %U)\n' 2>/dev/null
	)
	[[ -n $found ]] || return 0
	sed "s/^/$host: /" <<<"$found"
	return 1
}
