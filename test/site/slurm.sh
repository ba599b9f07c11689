# shellcheck shell=bash
# Slurm with other settings than the bed's, and nodes that it takes out of service.

# slurm_with SCRIPT restarts Slurm's daemons with a copy of /etc/slurm that a script has changed on
# each host. slurm_as_before undoes that.
slurm_with() {
	local host
	for host in "${hosts[@]}"; do
		on "$host" sh -c "cp -r /etc/slurm /run/slurm.etc && cd /run/slurm.etc && { $1; } && mount --bind /run/slurm.etc /etc/slurm" || fail "change Slurm's settings on $host"
	done
	restart_slurm
}
slurm_as_before() {
	local host
	for host in "${hosts[@]}"; do
		on "$host" sh -c 'umount /etc/slurm; rm -rf /run/slurm.etc' 2>/dev/null
	done
	restart_slurm
}

restart_slurm() {
	local host
	for host in n1 n2; do stop_daemon $host slurmd; done
	stop_daemon ctl slurmctld
	start_daemon ctl slurmctld -D
	poll 30 on ctl scontrol ping >/dev/null || fail "slurmctld does not start"
	for host in n1 n2; do start_daemon $host slurmd -D -N $host; done
	poll 60 all_nodes_idle || fail "nodes: $(on ctl sinfo -h -N -o '%N %T %E')"
	# The first job after a start may wait longer than job does.
	poll 60 runs carol || fail "no job starts after Slurm's daemons"
}

# start_daemon HOST PROGRAM ARGS... starts a daemon of Slurm as the bed does.
start_daemon() {
	local host=$1 program=$2
	shift
	"$bed" run "$host" "$@" >>"$out/$program-$host.log" 2>&1 </dev/null &
	daemons[$program-$host]=$!
}

# stop_daemon HOST PROGRAM [SIGNAL] ends it. slurmd first waits for its threads, for up to two
# minutes; steps survive its death.
stop_daemon() {
	on "$1" sh -c "kill -${3:-TERM} \$(pgrep -x $2)"
	poll 20 eval "! on $1 pgrep -x $2 >/dev/null" || on "$1" sh -c "kill -KILL \$(pgrep -x $2)"
	poll 20 eval "! on $1 pgrep -x $2 >/dev/null" || fail "$2 does not end on $1"
	[[ -z ${daemons[$2-$1]:-} ]] || wait "${daemons[$2-$1]}" 2>/dev/null
	unset "daemons[$2-$1]"
}

# private_tmp: with job_container/tmpfs a job has its own /tmp, beside its own network, in all of
# its steps, with an image and with berth's Kubernetes, and no mount of it stays.
private_tmp() {
	local seen
	slurm_with 'echo JobContainerType=job_container/tmpfs >>slurm.conf; printf "AutoBasePath=true\nBasePath=/run/job-tmp\n" >job_container.conf'
	job alice -J db
	job bob
	for node in n1 n2; do step alice $node touch /tmp/of-alice || fail "write into /tmp on $node"; done
	for node in n1 n2; do
		seen=$(step alice $node sh -c 'ls /tmp; ip -o link | grep -vc ": lo:"; cat /proc/1/comm; getent hosts pod1' 2>&1)
		[[ $seen == $'of-alice\n1\nberth-pod\n'"$(pod_of alice n2) "* ]] || fail "a step on $node: $seen"
		[[ -z $(step bob $node ls /tmp) && -z $(on $node ls /tmp) ]] || fail "another /tmp on $node has: $(step bob $node ls /tmp) $(on $node ls /tmp)"
	done
	serve alice n2 7000
	talks n1 n2 || fail "pods do not reach each other: $heard"
	session_image "$stage/private-image"
	seen=$(as alice login srun --overlap --jobid "${jobs[alice]}" -w n1 -N1 -n1 --container-image=/srv/site/private-image sh -c 'cat /etc/os-release; ls /tmp' 2>&1)
	[[ $seen == $'image of sessions\nof-alice' ]] || fail "a step with an image: $seen"
	seen=$(from_outside alice n1 readlink /proc/self/ns/net)
	[[ $seen == "$(step alice n1 readlink /proc/self/ns/net)" ]] || fail "a session: $seen"
	seen=$(in_berth srun -Q -N1 -n1 --mem=1500 berth run --image /srv/images/busybox.tar -- true 2>&1) || fail "berth run: $seen"
	on ctl scancel "${jobs[alice]}" "${jobs[bob]}"
	poll 20 gone alice || fail "the job does not end"
	poll 20 all_nodes_idle || fail "nodes: $(on ctl sinfo -h -N -o '%N %T %E')"
	for node in n1 n2; do
		stop_daemon $node slurmd
		# Slurm makes a directory with the node's name.
		seen=$(on $node find /run/job-tmp -mindepth 2)
		[[ -z $seen ]] || fail "left on $node: $seen"
		on $node sh -c 'umount /run/job-tmp 2>/dev/null; rm -r /run/job-tmp'
		start_daemon $node slurmd -D -N $node
	done
	slurm_as_before
	rm -r "$stage/private-image"
}

# drained_by_health_check: the site's health check drains a node while a job runs there. The job
# notices nothing and ends as usual, and nothing is left. When the check has resumed the node, jobs
# start there.
drained_by_health_check() {
	cat >"$stage/health" <<-'END'
		#!/bin/sh
		node=$(hostname)
		if [ -e /run/ill ]; then
			/usr/bin/scontrol update nodename=$node state=drain reason="health: a device is missing"
		elif /usr/bin/scontrol show node $node | grep -q Reason=health; then
			/usr/bin/scontrol update nodename=$node state=resume
		fi
	END
	chmod 755 "$stage/health"
	slurm_with 'printf "%s\n" HealthCheckProgram=/srv/site/health HealthCheckInterval=1 >>slurm.conf'
	job alice
	serve alice n2 7000
	on n2 touch /run/ill
	poll 30 eval '[[ $(node_state n2) == draining ]]' || fail "the node is $(node_state n2)"
	talks n1 n2 || fail "pods do not reach each other: $heard"
	[[ $(step alice n2 echo runs 2>&1) == runs ]] || fail "no step on the drained node: $(step alice n2 echo runs 2>&1)"
	on ctl scancel "${jobs[alice]}"
	poll 30 settled || fail "left: $(etcdctl get --prefix /berth/site/1/networks/)"
	[[ $(node_state n2) == drained ]] || fail "the node is $(node_state n2)"
	[[ $(as bob login srun -Q -N1 -n1 --mem=100 hostname 2>&1) == n1 ]] || fail "no job on the other node"
	on n2 rm /run/ill
	poll 30 all_nodes_idle || fail "the node is $(node_state n2)"
	runs bob || fail "no job starts afterwards"
	slurm_as_before
	rm "$stage/health"
}
node_state() { on ctl sinfo -h -n "$1" -o %T; }

# rebooted: scontrol reboot waits for the job on the node, which keeps its network meanwhile. After
# the boot jobs start there. RebootProgram only asks the test for it, which takes the node's power.
rebooted() {
	printf '#!/bin/sh\ntouch /run/boot\n' >"$stage/reboot"
	chmod 755 "$stage/reboot"
	slurm_with 'echo RebootProgram=/srv/site/reboot >>slurm.conf'
	job alice
	serve alice n2 7000
	on ctl scontrol reboot asap nextstate=resume n2 || fail "scontrol reboot"
	poll 20 eval '[[ $(node_state n2) == drain* ]]' || fail "the node is $(node_state n2)"
	talks n1 n2 || fail "pods do not reach each other before the boot: $heard"
	on ctl scancel "${jobs[alice]}"
	poll 60 on n2 test -e /run/boot || fail "the node is not told to boot: $(node_state n2)"
	lose_power n2
	regain_power n2
	# A node of a bed has the machine's uptime, so -b makes slurmd report the boot.
	stop_daemon n2 slurmd
	start_daemon n2 slurmd -D -b -N n2
	poll 60 all_nodes_idle || fail "nodes: $(on ctl sinfo -h -N -o '%N %T %E')"
	job bob
	serve bob n2 7000
	[[ $(step bob n1 socat -u "TCP:$(pod_of bob n2):7000,connect-timeout=5" -) == "from $(pod_of bob n1)" ]] || fail "pods of a new job do not reach each other"
	on ctl scancel "${jobs[bob]}"
	poll 20 gone bob || fail "the job does not end"
	slurm_as_before
	rm "$stage/reboot"
}

# lose_power HOST takes the power of a node. regain_power gives it back, and starts what is enabled
# there.
lose_power() {
	"$bed" lose "$1" || fail "$1 does not end"
	wait "${daemons[$1]}" "${daemons[sshd-$1]}" 2>/dev/null
	[[ -z ${daemons[slurmd-$1]:-} ]] || wait "${daemons[slurmd-$1]}" 2>/dev/null
	unset "daemons[slurmd-$1]"
}
regain_power() {
	"$bed" start "$1" || fail "$1 does not come back"
	start "$1" "$1" run
	start_sshd "$1"
	poll 30 answers "$1" || fail "berthd does not start on $1"
	poll 10 has_sshd "$1" || fail "sshd does not start on $1"
}

# lost_in_prolog: a node loses power while Slurm's prolog runs there, so it never asks for a
# network. Slurm puts the job back. The addresses become free, and the job gets new ones when it
# starts again. A job that cannot be put back ends.
lost_in_prolog() {
	local client
	printf '#!/bin/sh\n[ ! -e /run/hang ] || { touch /run/in-prolog; exec sleep 600; }\n' >"$stage/prolog"
	chmod 755 "$stage/prolog"
	slurm_with 'echo Prolog=/srv/site/prolog >>slurm.conf'
	on n2 touch /run/hang
	jobs[alice]=$(as alice login sbatch --parsable -N2 -n2 --mem=100 -o /dev/null --wrap 'sleep 300')
	as bob login srun -Q -N2 -n2 --mem=100 hostname >"$out/client" 2>&1 &
	client=$!
	poll 30 on n2 test -e /run/in-prolog || fail "no prolog on n2"
	poll 20 on n1 test -e "/run/berthd/pods/${jobs[alice]}" || fail "no network on n1"
	lose_power n2
	poll 90 eval '[[ $(node_state n2) == down* ]]' || fail "slurmctld does not miss n2: $(node_state n2)"
	regain_power n2
	poll 90 eval '[[ $(on ctl squeue -h -j "${jobs[alice]}" -o %T) == PENDING ]] || everywhere alice' || fail "the job is not put back: $(on ctl scontrol show job "${jobs[alice]}")"
	wait $client && fail "srun has not failed: $(<"$out/client")"
	poll 60 again_everywhere alice || fail "no network for the second start: $(on ctl scontrol show job "${jobs[alice]}")"
	serve alice n2 7000
	talks n1 n2 || fail "pods of the second start do not talk: $heard"
	on ctl scancel "${jobs[alice]}"
	poll 20 gone alice || fail "the job does not end"
	slurm_as_before
	rm "$stage/prolog"
}
# again_everywhere USER also shortens Slurm's pause of two minutes before a job's second start.
again_everywhere() {
	on ctl scontrol update "jobid=${jobs[$1]}" StartTime=now 2>/dev/null
	everywhere "$1"
}
