# shellcheck shell=bash
# Features of the site network for jobs. docs/pcocc.md refers to these names.

# job USER [SBATCH OPTION...] starts a job on both nodes, and waits for its network.
# jobs[USER] is then its number.
declare -A jobs
job() {
	local user=$1
	shift
	jobs[$user]=$(as "$user" login sbatch --parsable -N2 -n2 --mem=100 -o /dev/null "$@" --wrap 'sleep 300')
	poll 20 everywhere "$user" || fail "no network for $user's job on both nodes"
}

everywhere() {
	local node
	for node in n1 n2; do on $node test -e "/run/berthd/pods/${jobs[$1]}" || return 1; done
}

# pod_of USER NODE prints the address that etcd holds for the user's job there.
pod_of() {
	etcdctl get --prefix /berth/site/1/networks/ | grep "\"job\":${jobs[$1]}," |
		grep -o "{\"node\":\"$2\"[^}]*}" | sed 's/.*"address":"//; s/".*//'
}
network_of() { etcdctl get --prefix /berth/site/1/networks/ | grep "\"job\":${jobs[$1]}," | grep -o '"vni":[0-9]*' | cut -d: -f2; }
mac_of() { # ADDRESS
	# shellcheck disable=SC2046
	printf '02:62:%02x:%02x:%02x:%02x' $(tr . ' ' <<<"$1")
}
# hop_of ADDRESS prints the MAC address that a pod sends frames to for another pod of
# its network.
hop_of() { if [[ -n $subnets ]]; then echo 02:62:62:65:72:74; else mac_of "$1"; fi; }

# step USER NODE CMD... runs a step of the user's job there.
step() {
	local user=$1 node=$2
	shift 2
	as "$user" login srun --overlap --jobid "${jobs[$user]}" -w "$node" -N1 -n1 "$@"
}

# root USER NODE CMD... runs a command as a user could who became root in the pod.
root() {
	local user=$1 node=$2
	shift 2
	on "$node" nsenter --net="/run/berthd/net/${jobs[$user]}" "$@"
}

# own USER NODE CMD... runs a command in the pod with sockets of the user, as tasks have them.
own() {
	local user=$1 node=$2
	shift 2
	root "$user" "$node" setpriv --reuid="$(settings id_of "$user")" --clear-groups "$@"
}

# serve USER NODE PORT starts a server in the pod that prints who connected.
serve() {
	step "$1" "$2" socat "TCP-LISTEN:$3,reuseaddr,fork" SYSTEM:'echo from $SOCAT_PEERADDR' >/dev/null 2>&1 &
	helpers+=($!)
	poll 20 listens "$@" || fail "no server in the pod of $1 on $2"
}
listens() { root "$1" "$2" ss -Hltn "sport = :$3" | grep -q .; }

# one_interface: all steps of a job on a node, including later ones, share one
# namespace with one interface, which has the address in etcd. So does slurmstepd
# itself, because its PMI server must be on the tasks' loopback.
one_interface() {
	local node seen want
	job alice
	for node in n1 n2; do
		seen=$(step alice $node sh -c 'ip -o link | grep -vc ": lo:"; ip -o -4 addr show dev eth0 | sed "s/.*inet //; s:/.*::"')
		want=$(printf '1\n%s' "$(pod_of alice $node)")
		[[ $seen == "$want" ]] || fail "on $node: $seen, want $want"
		seen=$(step alice $node readlink /proc/self/ns/net)
		want=$(on $node sh -c 'for pid in $(pgrep "slurmstepd|sleep"); do readlink /proc/$pid/ns/net; done' | grep -vxF "$(on $node readlink /proc/1/ns/net)" | sort -u)
		[[ $want == "$seen" ]] || fail "namespaces on $node: of a step $seen, of slurmstepd and the batch script $want"
	done
}

# no_nat: pods of a job on two nodes connect to each other, and so do two jobs of a
# user. Each sees the other's own address.
no_nat() {
	local first second seen
	job alice
	serve alice n2 7000
	first=$(pod_of alice n1) second=$(pod_of alice n2)
	seen=$(step alice n1 socat - "TCP:$second:7000" </dev/null)
	[[ $seen == "from $first" ]] || fail "n1 to n2: '$seen', want from $first"
	job alice
	first=$(pod_of alice n1)
	seen=$(step alice n1 socat - "TCP:$second:7000" </dev/null)
	[[ $seen == "from $first" ]] || fail "another job of alice to the first: '$seen', want from $first"
}

# hosts_reached: a pod connects to a daemon on its own host and on another one, which
# sees the pod's address. A login host reaches a pod; other users' processes on a
# pod's host do not.
hosts_reached() {
	local seen pod host
	job alice
	for host in n1 n2 login; do
		"$bed" run $host socat TCP-LISTEN:6900,reuseaddr,fork SYSTEM:'echo from $SOCAT_PEERADDR' >/dev/null 2>&1 &
		helpers+=($!)
	done
	pod=$(pod_of alice n1)
	for host in n1 n2 login; do
		poll 20 step alice n1 socat -u "TCP:$(address $host):6900" - >"$out/seen" 2>/dev/null
		[[ $(<"$out/seen") == "from $pod" ]] || fail "pod to $host: '$(<"$out/seen")', want from $pod"
	done
	serve alice n1 7000
	for host in login n1; do
		seen=$(as alice $host socat -u "TCP:$pod:7000" - 2>&1)
		[[ $seen == "from $(address $host)" ]] || fail "$host to the pod: '$seen'"
	done
	seen=$(as bob n1 socat -u "TCP:$pod:7000,connect-timeout=2" - 2>&1)
	[[ $seen != from* ]] || fail "bob on n1 reaches alice's pod"
	seen=$(as bob n2 socat -u "TCP:$pod:7000,connect-timeout=2" - 2>&1)
	[[ $seen != from* ]] || fail "bob on n2, where policy allows nobody, reaches alice's pod"
}

# slurm_inside: commands of Slurm work inside a job: srun in a batch script over both
# nodes, with its output, input and exit code, and squeue.
slurm_inside() {
	local seen
	# shellcheck disable=SC2016
	seen=$(as alice login sh -c 'sbatch -Q -W -N2 -n2 --mem=100 -o slurm.out --wrap "srun sh -c \"ip -o -4 addr show dev eth0 | grep -c 10.200; exit 3\"; echo code \$?; echo hello | srun -n1 -N1 cat; squeue -h -o %u; srun --pty -n1 -N1 echo a terminal" </dev/null; cat slurm.out')
	[[ $(grep -c '^1$' <<<"$seen") == 2 && $seen == *"code 3"* && $seen == *hello* && $seen == *alice* && $seen == *"a terminal"* ]] ||
		fail "srun from inside: $seen"
	seen=$(as alice login sh -c 'salloc -Q -N2 --mem=100 srun --mpi=pmi2 -n2 sh -c "echo \$PMI_RANK of \$PMI_SIZE"' 2>&1 | sort)
	[[ $seen == $'0 of 2\n1 of 2' ]] || fail "pmi2: $seen"
}

# users_apart: pods of two users, on one node and on two, cannot reach each other,
# whatever root in a pod sends, with its own addresses or the other's, or through the
# hosts.
users_apart() {
	local node a b own frames label mac ip to kind host
	# The kernel binds the tunnel port with the first pod: a user who had it before
	# would block all pods.
	a=$(as bob n1 timeout 20 socat -u UDP-RECV:289,bind=127.0.0.1 - 2>&1)
	[[ $a == *"Permission denied"* ]] || fail "bob may open the port of tunnels: $a"
	job alice
	job bob
	serve bob n1 7000
	for node in n1 n2; do
		! step alice $node socat -u "TCP:$(pod_of bob n1):7000,connect-timeout=2" - 2>/dev/null | grep -q from || fail "alice on $node reaches bob"
	done
	start_listener bob n1
	b=$(pod_of bob n1)
	for node in n1 n2; do
		a=$(pod_of alice $node)
		own=$(mac_of "$a")
		# shellcheck disable=SC2207
		frames=($(
			for label in "$own $a" "$own $(pod_of bob n2)" "$(mac_of "$(pod_of bob n2)") $(pod_of bob n2)" "$own $(address ctl)" "$own 10.200.0.1"; do
				read -r mac ip <<<"$label"
				for to in "$(mac_of "$b")" ff:ff:ff:ff:ff:ff 02:62:62:65:72:74 01:00:5e:00:00:01; do
					for kind in ip arp vlan ip6 odd; do
						echo "$node/$kind/$to/$mac/$ip=$kind,$to,$mac,$ip,$b"
					done
				done
				for host in n1 n2; do
					echo "$node/vxlan/$host/$ip=vxlan:$(network_of bob):$(mac_of "$b")/$b,02:62:62:65:72:74,$mac,$ip,$(address $host)"
				done
			done
		))
		root alice $node /srv/site/frames send eth0 "${frames[@]}" || fail "send"
	done
	# A user of a host, outside of any pod, writes tunnel packets.
	for node in login n2 n1; do
		as alice $node /srv/site/frames udp 0 "$(address n1):289" "$node/udp=vxlan:$(network_of bob),$(mac_of "$b"),$(mac_of "$b"),$b,$b" || fail "send from $node"
	done
	# So does root of a host without a pod of bob's network.
	on login /srv/site/frames udp 600 "$(address n1):289" "login/root=vxlan:$(network_of bob),$(mac_of "$b"),$(mac_of "$b"),$b,$b" || fail "send as root of login"
	still_listens bob n1 "$(pod_of bob n2)" n2
	! grep -v "control" "$out/frames" | grep received || fail "bob's pod received: $(grep -v control "$out/frames" | head -n 5)"
	# With routes there are no tunnels. With tunnels, the same packet from root of a node with
	# a pod of bob's is accepted.
	[[ -z $subnets ]] || return
	on n2 /srv/site/frames udp 600 "$(address n1):289" "tunnelled=vxlan:$(network_of bob),$(mac_of "$b"),$(mac_of "$b"),$b,$b" || fail "send as root"
	poll 10 grep -q "received tunnelled" "$out/frames" || fail "tunnel packets do not arrive from anybody"
}

# start_listener USER NODE records every frame that the pod there receives.
start_listener() {
	: >"$out/frames"
	root "$1" "$2" /srv/site/frames listen eth0 >"$out/frames" 2>&1 </dev/null &
	helpers+=($!)
	poll 10 grep -q listening "$out/frames" || fail "no listener: $(<"$out/frames")"
}

# still_listens USER NODE FROM NODE waits for a frame that is sent last, so that all
# others have had time to arrive.
still_listens() {
	local to
	to=$(pod_of "$1" "$2")
	root "$1" "$4" /srv/site/frames send eth0 "control=ip,$(hop_of "$to"),$(mac_of "$3"),$3,$to" || fail "send the control frame"
	poll 10 grep -q "received control" "$out/frames" || fail "the listener receives nothing at all: $(<"$out/frames")"
}

# nobody_spoofs: no frame without the sender's own addresses passes, not even to pods
# of the same user.
nobody_spoofs() {
	local a b other hop
	job alice
	a=$(pod_of alice n1) b=$(pod_of alice n2) other=10.200.9.9
	hop=$(hop_of "$b")
	start_listener alice n2
	root alice n1 /srv/site/frames send eth0 \
		"ip=ip,$hop,$(mac_of "$a"),$other,$b" "mac=ip,$hop,$(mac_of "$other"),$a,$b" \
		"arp=arp,$hop,$(mac_of "$a"),10.200.0.1,$b" "arp-broadcast=arp,ff:ff:ff:ff:ff:ff,$(mac_of "$a"),10.200.0.1,$b" \
		"ip6=ip6,$hop,$(mac_of "$a"),$a,$b" || fail "send"
	still_listens alice n2 "$a" n1
	! grep -v control "$out/frames" | grep received || fail "spoofed frames pass: $(<"$out/frames")"
	# Genuine frames pass, from a pod on the same bridge: across nodes the tunnel
	# answers ARP itself.
	[[ -z $subnets ]] || return
	job alice
	a=$(pod_of alice n2)
	root alice n2 /srv/site/frames send eth0 "true=arp,$hop,$(mac_of "$a"),$a,$b" || fail "send"
	poll 10 grep -q "received true" "$out/frames" || fail "ARP with the pod's own addresses does not pass"
}

# readable_failure: without berthd on a node, a job fails with the reason, and the node is drained
# until berthd is back.
readable_failure() {
	local seen
	kill "${daemons[n2]}" && wait "${daemons[n2]}"
	seen=$(as alice login srun -N2 -n2 --mem=100 hostname 2>&1) && fail "it ran: $seen"
	[[ $seen == *"this job has no network: berthd does not answer"* ]] || fail "the user reads: $seen"
	drained_for n2 'berth: berthd does not answer' || fail "n2 is not drained: $(node_states)"
	[[ $(on ctl sinfo -h -n n1 -o %T) != *d[ro]* ]] || fail "nodes: $(node_states)"
	start n2 n2 run
	poll 20 answers n2 || fail "berthd does not come back"
	seen=$(as alice login srun -N2 -n2 --mem=100 hostname 2>"$out/errors" | sort)
	[[ $seen == $'n1\nn2' ]] || fail "afterwards: $seen $(<"$out/errors")"
}

# daemon_killed: berthd is killed and restarted under a running job, which notices
# nothing. The new berthd handles the job's end.
daemon_killed() {
	local seen
	job alice
	serve alice n2 7000
	on n2 sh -c 'kill -9 $(pgrep -x berthd)'
	wait "${daemons[n2]}"
	seen=$(step alice n1 socat -u "TCP:$(pod_of alice n2):7000" - 2>&1)
	[[ $seen == "from $(pod_of alice n1)" ]] || fail "the network stops with the daemon: $seen"
	start n2 n2 run
	poll 20 answers n2 || fail "berthd does not come back"
	seen=$(step alice n1 socat -u "TCP:$(pod_of alice n2):7000" - 2>&1)
	[[ $seen == "from $(pod_of alice n1)" ]] || fail "afterwards: $seen"
	seen=$(step alice n2 ip -o -4 addr show dev eth0)
	[[ $seen == *"$(pod_of alice n2)/"* ]] || fail "a new step: $seen"
	! on n2 timeout 10 /srv/site/berth-pod wait </dev/null || fail "a pod begins without the permission of a daemon"
}

# shared_processes: the tasks of a job on a node see only each other, also in /proc,
# and share memory. Signals and exit codes pass. A daemonized process ends with the
# job.
shared_processes() {
	local seen
	job alice
	job bob
	step alice n1 sleep 200 &
	helpers+=($!)
	poll 10 in_pod alice 2>/dev/null 'ps -e -o args= | grep -q "[s]leep 200"' || fail "a step does not see another"
	seen=$(step alice n1 sh -c 'ps -e -o user= | sort -u; cat /proc/1/comm; echo $$ = $(readlink /proc/self | wc -w)')
	[[ $seen != *bob* && $seen != *munge* && $seen == *berth-pod* ]] || fail "processes that are seen: $seen"
	seen=$(step alice n1 readlink /proc/self/ns/pid)
	[[ $seen == "$(step alice n1 readlink /proc/self/ns/pid)" && $seen != "$(on n1 readlink /proc/1/ns/pid)" ]] || fail "PID namespaces differ"
	step alice n1 sh -c 'exit 7' 2>/dev/null
	[[ $? -eq 7 ]] || fail "exit code"
	# shellcheck disable=SC2016
	seen=$(step alice n1 sh -c 'kill -SEGV $$' 2>&1)
	[[ $? -eq 139 && $seen == *"Segmentation fault"* ]] || fail "end by a signal: $seen"
	# With control groups Slurm ends it with the step, otherwise the pod ends it with
	# the job.
	step alice n1 setsid -f sh -c 'exec >/dev/null 2>&1 </dev/null; sleep 250' || fail "daemonise"
	[[ $proctrack == cgroup ]] || in_pod alice 'ps -e -o args= | grep -q "[s]leep 250"' || fail "what daemonised has ended with its step"
	on ctl scancel "${jobs[alice]}"
	poll 20 ended_all || fail "left: $(on n1 pgrep -fa 'sleep 2[05]0')"
}
in_pod() { step "$1" n1 sh -c "$2"; }
ended_all() { ! on n1 pgrep -f 'sleep 2[05]0' >/dev/null; }

# signals: a signal that is sent to a step arrives once. With scancel --batch only the
# batch script receives it.
signals() {
	local id
	as alice login sh -c 'rm -f count; cat >trap.sh' <<-'END'
		#!/bin/bash
		trap 'echo "$1 USR1" >>count' USR1
		trap 'echo "$1 TERM" >>count; exit 0' TERM
		echo "$1 ready" >>count
		while :; do sleep 0.1; done
	END
	id=$(as alice login sbatch --parsable -N1 -n1 --mem=100 -w n1 -o /dev/null --wrap 'bash trap.sh batch & srun -n1 --overlap bash trap.sh step & trap "echo script USR1 >>count" USR1; while :; do wait; sleep 0.1; done')
	poll 20 counted 'step ready' 1 && poll 20 counted 'batch ready' 1 || fail "not ready: $(as alice login cat count)"
	as alice login scancel -s USR1 "$id.0"
	poll 10 counted 'step USR1' 1 || fail "the step has got no signal: $(as alice login cat count)"
	as alice login scancel --batch -s USR1 "$id"
	poll 10 counted 'script USR1' 1 || fail "the batch script has got no signal: $(as alice login cat count)"
	as alice login scancel "$id"
	poll 10 counted 'step TERM' 1 || fail "no SIGTERM: $(as alice login cat count)"
	counted 'step USR1' 1 && counted 'script USR1' 1 || fail "signals came twice: $(as alice login cat count)"
}

# task_killed: the process between Slurm and a program is killed: the program ends
# too, and its step fails. If it is only stopped, it ends with its job.
task_killed() {
	local client
	job alice
	step alice n1 sleep 240 2>"$out/client" &
	client=$!
	poll 20 eval '[[ -n $(parent_of sleep 240) ]]' || fail "no program with a parent: $(on n1 ps -e -o pid,ppid,comm,args)"
	on n1 kill -9 "$(parent_of sleep 240)" || return
	wait "$client" && fail "its step has not failed: $(<"$out/client")"
	poll 10 eval '! on n1 pgrep -f "sleep 240\$" >/dev/null' || fail "the program goes on"
	[[ $(step alice n1 echo lives 2>&1) == lives ]] || fail "the job's next step does not run"
	step alice n1 sleep 240 2>"$out/client" &
	helpers+=($!)
	poll 20 eval '[[ -n $(parent_of sleep 240) ]]' || fail "no second program"
	on n1 kill -STOP "$(parent_of sleep 240)"
	on ctl scancel "${jobs[alice]}"
	poll 60 gone alice || fail "the job does not end: $(on ctl squeue) $(on n1 ps -e -o pid,ppid,stat,comm,args)"
	poll 10 eval '! on n1 pgrep -x berth-task >/dev/null && ! on n1 pgrep -f "sleep (240|300)\$" >/dev/null' || fail "left: $(on n1 ps -e -o pid,ppid,stat,comm,args)"
	[[ $(on ctl sinfo -h -o %T | sort -u) != *d[ro]* ]] || fail "nodes: $(on ctl sinfo -h -N -o '%N %T %E')"
}
# parent_of PROGRAM SECONDS prints the berth-task on n1 whose child it is.
parent_of() { on n1 sh -c 'ps -e -o ppid=,comm=,args= | while read -r parent name all; do [ "$name ${all##* }" = "$1 $2" ] && [ "$(cat /proc/$parent/comm)" = berth-task ] && echo $parent; done' sh "$1" "$2"; }
counted() { [[ $(as alice login grep -sc "^$1" count) == "$2" ]]; }

# opt_out: if the site permits it, a job may run in the hosts' network. No other job
# does.
opt_out() {
	local seen host
	host=$(on n1 readlink /proc/1/ns/net /proc/1/ns/pid)
	seen=$(as alice login srun -N1 -n1 -w n1 --mem=100 --network-pod=no readlink /proc/self/ns/net /proc/self/ns/pid 2>&1)
	[[ $seen == "$host" ]] || fail "srun: $seen, want $host"
	seen=$(as alice login sh -c 'sbatch -Q -W -N1 -n1 -w n1 --mem=100 --network-pod=no -o slurm.out --wrap "srun readlink /proc/self/ns/net /proc/self/ns/pid" </dev/null; cat slurm.out')
	[[ $seen == "$host" ]] || fail "sbatch: $seen, want $host"
	seen=$(as alice login srun -N1 -n1 -w n1 --mem=100 --network-pod=yes readlink /proc/self/ns/net 2>&1)
	[[ $seen == net:* && $host != *"$seen"* ]] || fail "a job with a network: $seen"
	seen=$(as alice login srun -N1 -n1 --mem=100 --network-pod=maybe hostname 2>&1) && fail "it ran: $seen"
	[[ $seen == *"write yes or no"* ]] || fail "a wrong choice: $seen"
}

# operated: tools of the administrator: the doctor, metrics, and the file that records
# who had which network.
operated() {
	local host seen lines
	for host in n1 login; do
		seen=$(on $host /srv/site/berthd doctor 2>&1) && [[ $seen != *WRONG* && $seen == *"ok    etcd answers"* ]] || fail "the doctor on $host: $seen"
		[[ $(etcdctl get "/berth/site/1/tunnels/$host") == 289 ]] || fail "the port of tunnels on $host: $(etcdctl get --prefix /berth/site/1/tunnels/)"
	done
	(configuration; echo 'tunnel: {port: 300}') | on n1 sh -c 'cat >/run/port.yaml'
	seen=$(on n1 /srv/site/berthd doctor --config /run/port.yaml 2>&1) && fail "the others have another port, and the doctor says: $seen"
	[[ $seen == *"WRONG all hosts use one port for tunnels: it is 300 here and 289 on ctl,login,n1,n2,"* ]] || fail "the others have another port, and the doctor says: $seen"
	for host in "${hosts[@]}"; do
		seen=$(on "$host" /srv/site/berthd check 2>&1) || fail "the configuration on $host: $seen"
	done
	# Only LDAP knows dave.
	configuration | sed "s|ca.crt|absent.crt|; s|carol, dave|carol, nobody0, dave|; s|on: .ctl, login.|on: [ctl, gw0]|; /^policy:/,\$d" |
		on n1 sh -c 'cat >/run/wrong.yaml'
	seen=$(on n1 /srv/site/berthd check --config /run/wrong.yaml 2>&1) && fail "nothing is wrong: $seen"
	for lines in "absent.crt: no such file" "groups.lab: there is no user nobody0" "gateways.on: no host gw0:" "policy.egress: Slurm's commands in jobs do not reach slurmctld on ctl:" "policy.ingress: slurmctld on ctl does not reach srun"; do
		[[ $seen == *"$lines"* && $seen != *dave* ]] || fail "'$lines' is not in: $seen"
	done
	job alice -J "audited"
	seen=$(on n1 curl -sf http://127.0.0.1:9418/metrics)
	[[ $seen == *'berthd_pods{kind="job"} 1'* && $seen == *"berthd_etcd_up 1"* && $seen == *'berthd_attach_seconds_bucket{le="+Inf"} '[1-9]* ]] || fail "metrics: $seen"
	on ctl scancel "${jobs[alice]}"
	poll 20 gone alice || fail "the job does not end"
	lines=$(on n1 grep "\"pod\":\"${jobs[alice]}\"" /var/log/berth-audit.log)
	[[ $(grep -o '"event":"[a-z]*"' <<<"$lines" | xargs) == "event:joined event:left" && $(grep -c '"user":"alice".*"name":"audited".*"address":"10.200.' <<<"$lines") == 2 ]] ||
		fail "the audit log: $lines"
	[[ $(on n1 stat -c %a /var/log/berth-audit.log) == 600 ]] || fail "others may read the audit log"
	restart_site 's/opt-out: true/opt-out: false/'
	seen=$(as alice login srun -Q -N1 -n1 --mem=100 --network-pod=no hostname 2>&1) && fail "without a network where that is not allowed: $seen"
	[[ $seen == *"--network-pod=no is not allowed at this site: submit the job without it"* ]] || fail "alice reads: $seen"
	restart_site ''
}
