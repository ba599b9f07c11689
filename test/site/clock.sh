# shellcheck shell=bash
# Steps of the time of day on hosts with pods.

# clock_stepped: the time of day of a node, of a login host, and of etcd's host steps
# by two hours, forwards and back. Jobs and sessions are not affected, new ones have
# networks, and leases and collection work as before. After the certificates have
# expired, existing connections continue, and new ones are refused with a reason that
# users can read. When the clock is right again, everything works.
clock_stepped() {
	# The certificates are valid for two days, and twelve hours have passed.
	local host seconds given limit=300 right=43200
	local berthd=/srv/site/stepped/berthd
	mkdir -p "$stage/stepped" && test/site/stepped "$stage/stepped" && chmod -R a+rX "$stage/stepped" || { fail "build programs whose time steps"; return; }
	stop_site
	stop_etcd
	configuration | sed 's|/srv/site/berth-dns|/srv/site/stepped/berth-dns|' >"$out/stepped.yaml"
	for host in "${hosts[@]}"; do on "$host" sh -c 'cat >/run/stepped.yaml' <"$out/stepped.yaml"; done
	set_clock $right "${hosts[@]}"
	start_etcd
	start_site --config /run/stepped.yaml
	poll 20 registered || fail "etcd does not start"
	for host in n1 login ctl; do steps_of $host; done
	for seconds in 7200 -7200; do ends_at $seconds; done
	too_late
	etcd_too_late
	stop_site
	stop_etcd
	for host in "${hosts[@]}"; do on "$host" rm /run/clock /run/stepped.yaml; done
	berthd=/srv/site/berthd
	start_etcd
	start_site
	poll 20 registered || fail "etcd does not come back"
}

# begun starts jobs of two users and a session, and records their addresses.
begun() {
	job alice
	job bob
	serve alice n2 7000
	serve bob n2 7000
	stay bob
	given=$(addresses)
}

# over ends them, and checks that no address remains.
over() {
	lose_clients
	on ctl scancel "${jobs[alice]}" "${jobs[bob]}"
	poll 30 settled || fail "left: $(addresses)"
}

# steps_of HOST steps its time of day, and back.
steps_of() {
	local before seen
	begun
	before=$(busy "$1")
	for seconds in 7200 -7200; do
		set_clock $((right + seconds)) "$1"
		# Longer than leases of ten seconds, and than polls of the controller, one a
		# second.
		sleep 12
		goes_on "with $1's clock at $seconds s"
		seen=$(busy "$1")
		((seen < 3 * before + 50)) || fail "with $1's clock at $seconds s its daemons use $seen ticks in 5 s, and had used $before"
		set_clock $right "$1"
	done
	over
}

# ends_at SECONDS: with the clock at that offset, the lease of a killed daemon
# expires, and jobs that are over are collected.
ends_at() {
	begun
	set_clock $((right + $1)) ctl login n1
	kill_daemon login
	poll 30 eval '[[ $(addresses) != *login* ]]' || fail "at $1 s the lease does not end: $(addresses)"
	start login login run --config /run/stepped.yaml
	poll 20 as_given || fail "at $1 s the session has not got its address again: $(addresses), want $given"
	jobs[carol]=$(as carol login sbatch --parsable -N2 -n2 --mem=100 -o /dev/null --wrap 'sleep 300')
	poll 20 everywhere carol || fail "no network for carol's job"
	kill_daemon n2
	on ctl scancel "${jobs[carol]}"
	poll 30 as_given || fail "at $1 s etcd keeps what is over: $(addresses), want $given"
	start n2 n2 run --config /run/stepped.yaml
	poll 20 answers n2 || fail "berthd does not come back"
	poll 20 gone carol || fail "n2 keeps the pod of a job that is over"
	set_clock $right ctl login n1
	over
}

# too_late: by n1's clock all certificates have expired.
too_late() {
	local seen
	begun
	set_clock $((right + 259200)) n1
	goes_on "with n1's clock behind the end of certificates"
	stop_etcd
	start_etcd
	poll 20 registered || fail "etcd does not come back"
	refused_as "x509: certificate has expired"
	seen=$(as alice login srun -Q -N1 -n1 -w n2 --mem=100 hostname 2>&1)
	[[ $seen == n2 ]] || fail "no job on another node: $seen"
	set_clock $right n1
	poll 60 runs alice || fail "no job starts when n1's clock is right again"
	goes_on "with n1's clock right again"
	over
}

# etcd_too_late: by the clock of etcd's host they have.
etcd_too_late() {
	begun
	set_clock $((right + 259200)) ctl
	stop_etcd
	start_etcd
	refused_as "tls: expired certificate"
	[[ $(from_outside bob login 'ps -e -o args= | grep -c "[s]leep 300"') == 1 ]] || fail "the session has not gone on"
	set_clock $right ctl
	# Etcd's HTTP gateway, which these cases use, is itself a client that retries at
	# growing intervals.
	poll 120 registered || fail "etcd's HTTP does not come back"
	# The lease of the session's host has expired: it writes the address again, unless
	# a job has got it.
	poll 60 as_given || fail "the addresses are $(addresses), want $given"
	poll 60 runs alice || fail "no job starts when etcd's clock is right again"
	goes_on "with etcd's clock right again"
	over
}

# set_clock SECONDS HOST... sets the offset of the time of day there. It uses one
# write, because daemons read it all the time.
set_clock() {
	local seconds=$1 host
	shift
	for host in "$@"; do
		on "$host" python3 -c 'import os, struct, sys
fd = os.open("/run/clock", os.O_CREAT | os.O_WRONLY, 0o644)
os.pwrite(fd, struct.pack("<q", int(sys.argv[1])), 0)
os.ftruncate(fd, 4096)' "$seconds" || fail "set the clock of $host"
		clocks[$host]=$seconds
	done
}
declare -A clocks

# addresses prints the addresses in etcd with their users and nodes.
addresses() {
	etcdctl get --prefix /berth/site/1/networks/ | grep -o '"user":"[^"]*"\|{"node":"[^}]*}' | sort
}

as_given() { [[ $(addresses) == "$given" ]]; }

# busy HOST prints the ticks of 10 ms that its daemons use in five seconds.
busy() {
	# shellcheck disable=SC2016
	on "$1" sh -c 'used() { cat $(pgrep -x "berthd|berth-dns" | sed "s:.*:/proc/&/stat:") | awk "{ticks += \$14 + \$15} END {print ticks}"; }
		before=$(used); sleep 5; echo $(($(used) - before))'
}

kill_daemon() { # HOST
	on "$1" sh -c 'kill -9 $(pgrep -f "[b]erthd run")'
	wait "${daemons[$1]}" 2>/dev/null
}

# goes_on WHEN checks everything that must hold at any time of day.
goes_on() {
	local seen stamp
	talks n1 n2 || fail "$1: alice's pods do not reach each other: $heard"
	[[ $(step bob n1 socat -u "TCP:$(pod_of bob n2):7000,connect-timeout=5" -) == "from $(pod_of bob n1)" ]] || fail "$1: bob's pods do not reach each other"
	[[ $(step alice n1 getent hosts pod1) == "$(pod_of alice n2) "* ]] || fail "$1: names: $(step alice n1 getent hosts pod1)"
	[[ $(from_outside bob login 'ps -e -o args= | grep -c "[s]leep 300"') == 1 ]] || fail "$1: the session has not gone on"
	runs alice || fail "$1: no new job"
	# A new session, also of a user who has none.
	seen=$(from_outside alice login hostname 2>&1)
	[[ $seen == login ]] || fail "$1: no new session: $seen"
	poll 20 as_given || fail "$1: addresses are $(addresses), want $given"
	seen=$(on n1 tail -n 1 /var/log/berth-audit.log)
	stamp=$(date -d "$(sed 's/.*"time":"\([^"]*\)".*/\1/' <<<"$seen")" +%s) || fail "$1: the audit log: $seen"
	((stamp > $(date +%s) + clocks[n1] - 300 && stamp <= $(date +%s) + clocks[n1])) || fail "$1: the audit log has no line of the last job, at $stamp, or another time: $seen"
	seen=$(on n1 curl -sf http://127.0.0.1:9418/metrics)
	# No duration includes the step of the clock, and none is negative.
	awk '/^berthd_etcd_up/ {up = $2} /^berthd_attach_seconds_sum/ {sum = $2} END {exit !(up == 1 && sum > 0 && sum < 1800)}' <<<"$seen" || fail "$1: metrics: $seen"
}

# refused_as REASON: a new job on n1 gets no network, and its user reads the reason.
refused_as() {
	local seen
	seen=$(as bob login srun -Q -N1 -n1 -w n1 --mem=100 hostname 2>&1) && fail "a job has started: $seen"
	[[ $seen == *"this job has no network"*"$1"* ]] || fail "bob reads '$seen', want $1"
	talks n1 n2 || fail "alice's pods do not reach each other: $heard"
}
