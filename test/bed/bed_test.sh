#!/bin/bash
# Tests of the bed itself: that it is a real Slurm, that users inside can do
# what they can on a cluster, and that nothing of it survives.
#
#   test/bed/bed_test.sh [NAME...]     all tests, or those named
#
# Needs root and scripts/install-deps bed. Exit code 0 when all pass.
set -uo pipefail
export LC_ALL=C BED_NAME=bedtest-$$ CPUS=1 MEM=500
bed=$(dirname "$(readlink -f "$0")")/bed

fail() {
	echo "    ${FUNCNAME[1]}, line ${BASH_LINENO[0]}: $*" >&2
	failed=1
}

# expect CODE TEXT CMD...: CMD's exit code, and its output (* matches all).
expect() {
	local code=$1 text=$2 out rc=0
	shift 2
	out=$("$@" 2>&1 </dev/null) || rc=$?
	# shellcheck disable=SC2053 # TEXT is a pattern
	[[ $rc -eq $code && $out == $text ]] ||
		fail "line ${BASH_LINENO[0]}: $* gave $rc, wanted $code and '$text':"$'\n'"$out"
}

# Slurm's commands can hang on a node in trouble: a test must not. Other tests may run at the
# same time, so the limit is long.
bed() { timeout 300 "$bed" "$@"; }
as() { bed run --user "$1" "${@:2}"; }
up() { bed up "$@" 2>"$scratch/up.log" || { fail "bed up $*: $(<"$scratch/up.log")"; return 1; }; }
down() { expect 0 "" bed down; }

eventually() {
	local deadline=$((SECONDS + 120))
	until "$@" >/dev/null 2>&1; do
		[[ $SECONDS -lt $deadline ]] || {
			fail "line ${BASH_LINENO[0]}: never came true: $*"
			return 1
		}
		sleep 0.05
	done
}

# Lists what the machine shows of this bed. Other tests may run at the same time, so
# it looks only at what a bed could leave.
traces() {
	local process
	findmnt -rno TARGET,SOURCE | grep berth-bed
	ip -o link | grep -E ' (br0|outside|v-[a-z0-9]+)[@:]'
	ls -d /var/tmp/berth-bed/{,.}"$BED_NAME"* 2>/dev/null
	find /sys/fs/cgroup -maxdepth 4 -name "bed-$BED_NAME*" 2>/dev/null
	grep -lzx "BED_NAME=$BED_NAME" /proc/[0-9]*/environ 2>/dev/null | while read -r process; do
		tr '\0' ' ' <"${process%environ}cmdline" | grep -E 'bed (up|cleaner|supervisor|host|power)'
	done
}

# The inode numbers of the namespaces that the bed's processes are in, less
# the machine's.
namespaces_of_bed() {
	local pid
	find /sys/fs/cgroup -path "*/bed-$BED_NAME/*" -name cgroup.procs -exec cat {} + | sort -u |
		while read -r pid; do readlink /proc/"$pid"/ns/*; done | sort -u |
		grep -vxFf <(readlink /proc/self/ns/*) | tr -dc '0-9\n'
}

# none_in_use FILE TIME reports whether no process of before TIME, in hundredths of a second
# of /proc/uptime, is in a namespace of FILE. Namespaces of other tests that begin later get
# the numbers of ended ones.
none_in_use() {
	local pid fields
	while read -r _ pid; do
		fields=$(sed 's/.*) //' /proc/"$pid"/stat) || continue
		# shellcheck disable=SC2086
		set -- "$1" "$2" $fields
		[[ ${22} -ge $2 ]] || return 1 # starttime is field 22, and the line begins with field 3
	done < <(lsns -no NS,PID | grep -wFf "$1")
}

now() { awk '{ print int($1 * 100) }' /proc/uptime; }

test_jobs() {
	up 3 || return
	expect 0 $'n1\nn2\nn3' bash -c "'$bed' run --user alice login srun -N3 hostname | sort"
	expect 7 '*' as alice login sbatch -W -o /dev/null --wrap 'exit 7'
	expect 5 '*' as bob login srun sh -c 'exit 5'

	# Slurm does not choose a node that the last job is still leaving; name it.
	as alice login srun -w n1 --job-name=long sh -c 'echo started >~/long; exec sleep 600' >/dev/null 2>&1 &
	local srun=$! id
	eventually as alice login test -s long
	id=$(as alice login squeue -h -n long -o %i)
	expect 0 n1 as alice login srun --overlap --jobid="$id" hostname
	expect 0 "" as alice login scancel "$id"
	eventually not kill -0 $srun
	expect 0 "" bed check
	down
}

test_run() {
	up 1 || return
	expect 3 "" bed run n1 sh -c 'exit 3'
	expect 137 "" as alice n1 sh -c 'kill -9 $$'
	expect 0 /home/alice as alice login pwd
	expect 0 $'HOME=/home/bob\nLANG=C.UTF-8\nLOGNAME=bob\nPATH=/usr/local/bin:/usr/bin:/bin\nSHELL=/bin/bash\nTERM=vt100\nUSER=bob' \
		env TERM=vt100 LEAK=1 bash -c "'$bed' run --user bob login env | sort"
	expect 0 "a b" bash -c "echo 'a b' | '$bed' run n1 cat"
	expect 0 '*terminal*' script -qec "'$bed' run login sh -c 'test -t 0 && test -t 1 && echo terminal >/dev/tty'" /dev/null
	expect 1 '*no host n9*' bed run n9 true
	expect 1 '*no user zoe*' as zoe n1 true

	# When `bed run` is ended, its command ends too, and may clean up.
	"$bed" run --user alice n1 sh -c 'trap "echo ended >~/ended; exit" TERM; echo >~/ready; while :; do sleep 0.1; done' &
	eventually as alice login test -e ready
	kill -KILL $!
	eventually as alice login test -s ended
	down
}

test_users() {
	up 1 || return
	expect 0 'uid=*dave* gid=*dave* groups=*dave*' as dave login srun -Q id
	expect 1 "" as dave login grep dave /etc/passwd
	expect 2 '*Permission denied*' as bob login ls /home/alice
	expect 0 700 as alice login stat -c %a /home/alice
	expect 1 "" as carol login sh -c 'grep -E "^(carol|$(id -u)):" /etc/subuid'
	as alice login touch /tmp/on-login
	expect 1 "" as alice n1 test -e /tmp/on-login
	expect 1 '*Read-only*' bed run n1 touch /etc/new /usr/new
	down
}

# What berth needs of a compute node, inside a job.
test_namespaces_in_jobs() {
	up 1 || return
	local user
	for user in alice dave; do
		expect 0 "*65536*" as "$user" login srun bash -c '
			unshare -U sleep 60 & child=$!
			until [[ $(readlink /proc/$child/ns/user) != $(readlink /proc/self/ns/user) ]]; do :; done
			first=$(awk -F: -v name=$USER -v id=$UID "\$1 == name || \$1 == id { print \$2 }" /etc/subuid)
			newuidmap $child 0 $UID 1 1 $first 65536 && cat /proc/$child/uid_map
			rc=$?; kill $child; exit $rc'
	done
	for user in alice carol dave; do
		expect 0 0 as "$user" login srun -Q unshare -Ur id -u
		expect 0 both as "$user" login srun -Q unshare -Urm bash -ec '
			dir=$(mktemp -d); mkdir $dir/{lower,upper,work,merged}; echo both >$dir/lower/file
			mount -t overlay -o lowerdir=$dir/lower,upperdir=$dir/upper,workdir=$dir/work,userxattr overlay $dir/merged
			cat $dir/merged/file; umount $dir/merged; chmod -R u+rwx $dir; rm -r $dir'
		expect 0 "*tap0*" as "$user" login srun unshare -Urn bash -ec '
			PATH+=:/usr/sbin
			nft add table inet t; nft add chain inet t c "{ type nat hook prerouting priority 0; }"
			ip tuntap add tap0 mode tap; ip link show tap0; exec 3<>/dev/fuse'
	done
	expect 0 "" bed check
	down
}

test_outside() {
	local resolver echoed='
		address=($(getent "$1" www.outside.test))
		exec 3<>"/dev/$2/${address[0]}/7"
		echo "over $2" >&3
		head -n 1 <&3'
	for resolver in ctl loopback; do
		RESOLVER=$resolver up 1 || return
		expect 0 "the outside world" as alice login srun -Q busybox wget -qO- http://alias.outside.test/
		expect 0 "over tcp" as alice login srun -Q bash -c "$echoed" bash ahostsv4 tcp
		expect 0 "over udp" as alice login srun -Q bash -c "$echoed" bash ahostsv4 udp
		expect 2 "" as alice n1 getent hosts nosuch.outside.test
		down
	done
	IPV6=on up 1 || return
	expect 0 "the outside world" as alice login srun -Q busybox wget -qO- 'http://[2001:db8:ffff::10]/'
	expect 0 "over tcp" as alice login srun -Q bash -c "$echoed" bash ahostsv6 tcp
	expect 0 "over udp" as alice login srun -Q bash -c "$echoed" bash ahostsv6 udp
	expect 0 '2001:db8:*' as alice login getent ahostsv6 n1
	down
}

test_check_finds_what_is_left() {
	up 1 || return
	expect 0 "*" as alice login srun bash -c 'touch /tmp/left /dev/shm/left; setsid unshare -Urn sleep 600 >/dev/null 2>&1 & until [[ $(cat /proc/$!/comm) == sleep ]]; do :; done'
	expect 1 '*n1: process *sleep 600*n1: namespace * net *n1: file /tmp/left (uid *)*n1: file /dev/shm/left*' bed check
	expect 1 '*file /tmp/left*' bed check --now n1
	expect 0 "" bed check login
	expect 1 '*' bed down --check
}

# An empty group of a job is no finding, because Slurm itself may leave it. A group
# of a step is one, and so is a group with a process in it.
test_check_of_groups() {
	PROCTRACK=cgroup TASK=cgroup up 1 || return
	local groups=/sys/fs/cgroup/freezer/slurm_n1/uid_1
	if bed run n1 test -d /sys/fs/cgroup/freezer; then
		expect 0 "" bed run n1 mkdir -p $groups/job_71
		expect 0 "" bed check
		expect 0 "" bed run n1 mkdir $groups/job_71/step_0
		expect 1 "*cgroup $groups/job_71*cgroup $groups/job_71/step_0*" bed check
		expect 0 "" bed run n1 rmdir $groups/job_71/step_0
		expect 0 "" bed run n1 sh -c "sleep 600 >/dev/null 2>&1 & echo \$! >$groups/job_71/cgroup.procs"
		expect 1 "*cgroup $groups/job_71*" bed check
		expect 0 "" bed run n1 sh -c "kill \$(cat $groups/job_71/cgroup.procs)"
	fi
	down
}

test_settings() {
	local proctrack task
	for proctrack in linuxproc pgid cgroup; do
		for task in none cgroup; do
			PROCTRACK=$proctrack TASK=$task up 2 || return
			expect 0 "*$proctrack*" as alice login scontrol show config
			expect 0 $'ok\nok' as alice login srun -Q -N2 --mem=100 echo ok
			expect 0 "" bed check
			[[ $task != cgroup ]] ||
				expect 1 '*Out Of Memory*' as alice login srun --mem=50 bash -c 'x=$(head -c 200M /dev/zero | tr "\0" x)'
			[[ $proctrack != cgroup ]] ||
				expect 0 '*' as alice login srun bash -c 'setsid sleep 600 >/dev/null 2>&1 &'
			expect 0 "" bed check
			down
		done
	done
	ACCT=slurmdbd up 1 || return
	expect 4 '*' as alice login srun sh -c 'exit 4'
	eventually bash -c "'$bed' run --user alice login sacct -nXo ExitCode | grep 4:0"
	down
	PROC_OPTIONS=hidepid=2 HOME_OPTIONS=noexec LOCAL=tmpfs FOLDERS="nas scratch" up 1 || return
	expect 1 "" as alice n1 test -e /proc/1
	expect 126 '*Permission denied*' as alice n1 bash -c 'cp /bin/true .; ./true'
	expect 0 tmpfs as alice n1 stat -f -c %T /tmp
	expect 0 "" as alice login sh -c 'umask 022; echo shared >/nas/file'
	expect 0 shared as bob n1 cat /nas/file
	expect 1 '*Read-only file system*' bed run n1 mkdir /other /usr/other
	down
	PROGRAMS=few up 1 || return
	expect 0 n1 as alice login srun hostname
	expect 127 "" as alice n1 bash -c 'command -v gcc perl python3 nft iptables runc curl git || exit 127'
	expect 1 "" as alice n1 bash -c "ls -A /usr/local /opt | grep -v -e : -e '^$'"
	expect 1 "" as alice n1 test -e "$bed"
	expect 0 '*6553?' as alice n1 unshare --map-root-user --map-users=auto cat /proc/self/uid_map
	expect 0 "" bed check
	down
	# The machine's last core: the first might be chance.
	local last=$(($(nproc) - 1))
	CORES="$last 0" PROCTRACK=cgroup up 2 || return
	expect 0 $'Cpus_allowed_list:\t'"$last" as alice login srun -Q -w n1 grep Cpus_allowed_list /proc/self/status
	expect 0 $'Cpus_allowed_list:\t0' as alice login srun -Q -w n2 grep Cpus_allowed_list /proc/self/status
	expect 0 "" bed check
	down
	expect 2 '*CORES needs PROCTRACK=cgroup*' env CORES=0 "$bed" up
	expect 2 $'*PROCTRACK is "x"*\n*CPUS is "y"*' env PROCTRACK=x CPUS=y "$bed" up
}

# Two beds whose names yield the same number must still get different ones, because
# the kernel counts by user id.
test_two_beds() {
	local twin=0
	until [[ $(number_of "$BED_NAME-$twin") == $(number_of "$BED_NAME") ]]; do twin=$((twin + 1)); done
	up 1 || return
	(
		first=$(as alice login id -u)
		BED_NAME=$BED_NAME-$twin
		up 1
		[[ $(as alice login id -u) != "$first" ]] || fail "alice of both is $first"
		expect 0 n1 as alice login srun -Q hostname
		down
		exit ${failed:-0}
	) || failed=1
	expect 0 n1 as alice login srun -Q hostname
	expect 1 '*up already*' bed up
	down
}

number_of() { echo $(($(cksum <<<"$1" | cut -d' ' -f1) % 99)); }

# Whatever ends a bed, and whenever, nothing is left. When only one process is killed,
# this needs no `down`.
test_sudden_ends() {
	local victim pid killed
	for victim in cleaner supervisor "parent of supervisor" ctl; do
		up 1 || return
		namespaces_of_bed >"$scratch/namespaces"
		pid=$(</var/tmp/berth-bed/"$BED_NAME"/pid/"${victim##* }")
		[[ $victim != parent* ]] || pid=$(ps -o ppid= "$pid" | xargs)
		killed=$(now)
		kill -KILL "$pid"
		[[ $victim != ctl ]] || down
		eventually none_in_use "$scratch/namespaces" "$killed"
		eventually test ! -e /var/tmp/berth-bed/"$BED_NAME"
		eventually nothing_left
	done

	up 1 || return
	mapfile -t victim < <(cat /var/tmp/berth-bed/"$BED_NAME"/pid/{cleaner,supervisor})
	kill -KILL "${victim[@]}"
	down
	eventually nothing_left
}

# A host without power is gone, and back with its disks when it has some.
test_power() {
	PROCTRACK=cgroup TASK=cgroup up 2 || return
	expect 0 "" bed run n2 sh -c 'echo kept >/var/tmp/kept; echo gone >/run/gone'
	expect 0 "" as alice login sbatch -Q --no-requeue -w n2 --wrap 'sleep 300'
	eventually bed run n2 pgrep -x sleep -u alice
	expect 0 "" bed lose n2
	expect 1 "*no host n2 that is up*" bed lose n2
	expect 1 "*host n1*is up*" bed start n1
	expect 1 "*no host n3*" bed start n3
	expect 0 "n1" as alice login srun -w n1 hostname
	# Slurm waits for minutes otherwise.
	expect 0 "" bed run ctl scontrol update nodename=n2 state=down reason=power
	expect 0 "" bed start n2
	bed run ctl scontrol update nodename=n2 state=resume >/dev/null 2>&1
	expect 0 "kept" bed run n2 cat /var/tmp/kept
	expect 1 "*" bed run n2 cat /run/gone
	eventually bash -c "'$bed' run ctl sinfo -h -n n2 -o %T | grep -x idle"
	expect 0 "" as alice login srun -Q -w n2 true
	expect 0 "" bed lose n2
	down
}

test_interrupted_up() {
	local signal at started
	for signal in INT TERM KILL; do
		for at in etc pid/cleaner pid/login; do
			# A background job of a script ignores SIGINT; env restores it.
			env --default-signal "$bed" up 2 >/dev/null 2>&1 &
			started=$!
			eventually test -e /var/tmp/berth-bed/"$BED_NAME"/$at
			kill -$signal $started
			wait $started 2>/dev/null
			# Before there is a cleaner, only the next command can clear up.
			[[ $signal$at != KILLetc ]] || bed down 2>/dev/null
			eventually nothing_left
		done
	done
}

test_up_right_after_the_end() {
	local i
	for i in 1 2 3 4; do
		up 1 || return
		expect 0 n1 as alice login srun -Q hostname
		case $i in
		1) down ;;
		2) end cleaner ;;
		3) end supervisor ;;
		esac
	done
	down
}

# end ROLE kills a process of the bed and waits until it has ended. A zombie has no
# command line.
end() {
	local pid
	pid=$(</var/tmp/berth-bed/"$BED_NAME"/pid/"$1")
	kill -KILL "$pid"
	eventually not grep -q . /proc/"$pid"/cmdline
}

test_failed_up() {
	expect 1 '*host ctl did not start*slurmctld*' env BED_SLURM_CONF=Nonsense=1 "$bed" up 1
	eventually nothing_left
	expect 1 '*host ctl did not start*BED_BIND*/nowhere*' env BED_BIND=/etc:/nowhere "$bed" up 1
	eventually nothing_left
	BED_LOGS=$scratch/logs BED_BIND=/etc/skel:/srv/skel up 1
	expect 0 "*.bashrc*" as alice n1 ls -a /srv/skel
	down
	[[ -s $scratch/logs/n1/slurmd.log ]] || fail "no logs in BED_LOGS"
}

not() { ! "$@"; }
nothing_left() {
	traces >"$scratch/left" 2>/dev/null
	[[ ! -s $scratch/left ]]
}

main() {
	[[ $EUID -eq 0 ]] || {
		echo "bed_test.sh needs root: sudo -E $0" >&2
		exit 2
	}
	scratch=$(mktemp -d)
	trap '"$bed" down 2>/dev/null; rm -rf "$scratch"' EXIT
	trap 'exit 130' INT TERM
	local tests name failures=0
	mapfile -t tests < <(declare -F | sed -n 's/^declare -f test_//p')
	[[ $# -eq 0 ]] || tests=("$@")
	for name in "${tests[@]}"; do
		failed=0
		"test_$name"
		bed down 2>/dev/null
		eventually nothing_left || cat "$scratch/left" >&2
		[[ $failed -eq 0 ]] && echo "ok   $name" || { echo "FAIL $name"; failures=$((failures + 1)); }
	done
	[[ $failures -eq 0 ]]
}

main "$@"
