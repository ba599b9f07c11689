# shellcheck shell=bash
# The names of pods.

# resolves USER NODE NAME prints the addresses that a step of the user's job resolves.
resolves() { step "$1" "$2" getent ahostsv4 "$3" 2>/dev/null | awk '$2 == "STREAM" { print $1 }' | sort | xargs; }

# pods_of USER prints the addresses of its job, in the order of resolves.
pods_of() { printf '%s\n' "$(pod_of "$1" n1)" "$(pod_of "$1" n2)" | sort | xargs; }

# names: the names of a job exist for its first process, on each node, and are gone
# when it ends. The search domains are the job's, then the user's, then the site's.
names() {
	local seen first pod1 www
	# From each of the two nodes: the address of pod0, of pod1, the number of the
	# job's addresses, and the node's own name.
	# shellcheck disable=SC2016
	seen=$(as alice login srun -N2 -n2 --mem=100 -J Solver_1 sh -c 'getent ahostsv4 pod0 | sed "s/ .*//; q"; getent ahostsv4 pod1 | sed "s/ .*//; q"
		getent ahostsv4 solver-1.alice.bed | grep -c STREAM
		getent hosts $(ip -o -4 addr show dev eth0 | sed "s/.*inet //; s:/.*::") | sed "s/.* //"' | sort | uniq -c | awk '{ print $1, $2 }')
	[[ $seen == "2 10.200."*$'\n'"2 10.200."*$'\n2 2\n1 pod0.solver-1.alice.bed\n1 pod1.solver-1.alice.bed' ]] || fail "the first processes see: $seen"
	www=$(settings eval 'echo $web_address')
	job alice -J db
	first=$(pods_of alice) pod1=$(pod_of alice n2)
	seen="$(resolves alice n1 www) $(resolves alice n2 www.outside.test)"
	[[ $seen == "$www $www" ]] || fail "names of the site: $seen"
	seen=$(resolves alice n2 "${jobs[alice]}.alice.bed")
	[[ $seen == "$first" ]] || fail "by number: $seen, want $first"
	job alice -J www
	seen=$(resolves alice n1 www)
	[[ $seen == "$(pods_of alice)" ]] || fail "a job called www is $seen, want $(pods_of alice)"
	seen=$(resolves alice n1 www.outside.test)
	[[ $seen == "$www" ]] || fail "www.outside.test is $seen"
	seen="$(resolves alice n2 db), $(resolves alice n2 pod1.db)"
	[[ $seen == "$first, $pod1" ]] || fail "another job, and its pod1: $seen, want $first, $pod1"
	seen=$(resolves alice n1 pod0)
	[[ $seen == "$(pod_of alice n1)" ]] || fail "pod0 is $seen"
	# A job must not take the place of a host, nor of the asker.
	seen=$(as alice login srun -N1 -n1 --mem=100 -J ctl sh -c 'getent ahostsv4 pod0.ctl.alice.bed; getent ahostsv4 "pod0.$SLURM_JOB_ID.alice.bed" | grep -c STREAM')
	[[ $seen == 1 ]] || fail "a job named like a host: $seen"
	seen=$(as alice login srun -N1 -n1 --mem=100 -J localhost sh -c 'getent ahostsv4 localhost.alice.bed; hostname')
	[[ $seen == n[12] ]] || fail "a job named localhost: $seen"
	on ctl scancel -n db
	poll 20 unknown alice n2 db || fail "the name of a job that is over: $(resolves alice n2 db)"
}
unknown() { [[ -z $(resolves "$@") ]]; }

# names_at_once: a job starts as the last one on its nodes ends. It always finds its
# names, although the former name servers may still run.
names_at_once() {
	local seen round
	# Each node prints how often it got each number of addresses. After the pause, the
	# end of the former job is usually just over when the next one begins.
	seen=$(for round in 1 2 3 4; do
		as alice login sh -c "srun -Q -N2 -n2 --mem=100 true
			sleep 0.1
			srun -Q -N2 -n2 --mem=100 -J next$round sh -c 'for i in \$(seq 100); do getent ahostsv4 next$round | grep -c STREAM; done | sort | uniq -c'"
	done | awk '{ print $1, $2 }' | sort | uniq -c | xargs)
	[[ $seen == "8 100 2" ]] || fail "so many nodes, so often, so many addresses of a new job's two: $seen"
}

# names_apart: nobody resolves or sees another user's name.
names_apart() {
	local mine name
	job alice -J db
	mine=$(pods_of alice)
	job bob -J db.alice.bed
	for name in db.alice.bed db.alice pod0.db.alice.bed alice.bed "${jobs[alice]}.alice.bed" "$(pod_of alice n1)"; do
		[[ -z $(step bob n1 getent hosts "$name" 2>/dev/null) ]] || fail "bob gets $name: $(step bob n1 getent hosts "$name")"
	done
	[[ $(resolves bob n2 db-alice-bed) == "$(pods_of bob)" ]] || fail "bob's own: $(resolves bob n2 db-alice-bed)"
	[[ $(resolves alice n1 db) == "$mine" && $(resolves alice n2 db.alice.bed) == "$mine" ]] || fail "alice gets $(resolves alice n1 db)"
	# Not even with another user's address.
	root bob n1 ip addr add "$(pod_of alice n1)/32" dev eth0
	root bob n1 ip route replace 10.200.0.1 dev eth0 src "$(pod_of alice n1)"
	[[ -z $(step bob n1 timeout 2 getent hosts db.alice.bed 2>/dev/null) ]] || fail "bob asks as alice"
}

# names_given: users give names to their own jobs. A name leads to all pods of the
# job, for everybody who sees these, and ends with the job. Any node of the job can
# set names: n2 is not its first.
names_given() {
	local seen
	job alice -J shop
	job bob
	step alice n2 /srv/site/berthd name web.default api || fail "alice cannot name her job"
	poll 10 eval '[[ $(resolves alice n1 web.default.shop.alice.bed) == "$(pods_of alice)" && $(resolves alice n2 api.shop) == "$(pods_of alice)" ]]' ||
		fail "web.default is $(resolves alice n1 web.default.shop.alice.bed), api $(resolves alice n2 api.shop)"
	# Use a session, which is a program of the user outside of the job. The first one
	# may start before the names are known.
	poll 10 session_knows alice web.default.shop.alice.bed || fail "a session does not know the name"
	[[ -z $(resolves alice n1 web.shop)$(resolves alice n1 other.default.shop.alice.bed) ]] || fail "there are names that nobody has given"
	seen=$(as bob n1 /srv/site/berthd name --job "${jobs[alice]}" mine 2>&1) && fail "bob names alice's job"
	[[ $seen == *"you have no such job"* ]] || fail "bob is told: $seen"
	[[ -z $(resolves bob n1 web.default.shop.alice.bed) ]] || fail "bob gets a name of alice's"
	seen=$(step alice n1 /srv/site/berthd name pod1 2>&1) && fail "a name of a pod is given away"
	[[ $seen == *"a pod has that name"* ]] || fail "alice is told: $seen"
	step alice n2 /srv/site/berthd name api || fail "alice cannot change the names"
	poll 10 unknown alice n1 web.default.shop.alice.bed || fail "a name that was taken back is $(resolves alice n1 web.default.shop.alice.bed)"
	[[ $(resolves alice n1 api.shop) == "$(pods_of alice)" ]] || fail "the other one is $(resolves alice n1 api.shop)"
	step alice n1 /srv/site/berthd name || fail "alice cannot take back all names"
	poll 10 unknown alice n2 api.shop || fail "with all names taken back, one is $(resolves alice n2 api.shop)"
}

session_knows() { # USER NAME
	[[ $(from_outside "$1" login "getent ahostsv4 $2" | awk '$2 == "STREAM" { print $1 }' | sort | xargs) == "$(pods_of "$1")" ]]
}

# name_server_killed: the name server restarts, and a new berthd takes over without a
# gap.
name_server_killed() {
	job alice -J db
	on n1 sh -c 'kill -9 $(pgrep -x berth-dns)'
	poll 10 knows alice n1 db || fail "no names after its end: $(tail -n 3 "$out/n1.log")"
	on n1 sh -c 'kill -9 $(pgrep -x berthd)'
	wait "${daemons[n1]}"
	root alice n1 busybox nslookup -type=a db.alice.bed 10.200.0.1 | grep -q "Address: $(pod_of alice n2)\$" || fail "names stop with the daemon"
	start n1 n1 run
	poll 20 answers n1 || fail "berthd does not come back"
	knows alice n1 db || fail "afterwards there are no names"
	poll 10 one_name_server || fail "name servers: $(on n1 pgrep -a berth-dns)"
	knows alice n1 db || fail "the last name server knows nothing"
}
knows() { [[ $(resolves "$@") == "$(pods_of "$1")" ]]; }
one_name_server() { [[ $(on n1 pgrep -cx berth-dns) == 1 ]]; }

# groups: users who share a network, one of them only in LDAP, reach each other's
# pods, also by name. Their processes stay apart, and so do other users.
groups() {
	local node seen
	job carol -J db
	job dave
	job alice
	serve carol n2 7000
	[[ $(network_of carol) == "$(network_of dave)" && $(network_of carol) != "$(network_of alice)" ]] || fail "networks: $(network_of carol), $(network_of dave), alice's $(network_of alice)"
	for node in n1 n2; do
		seen=$(step dave $node socat -u "TCP:$(pod_of carol n2):7000,connect-timeout=5" - 2>&1)
		[[ $seen == "from $(pod_of dave $node)" ]] || fail "dave on $node: $seen"
		! step alice $node socat -u "TCP:$(pod_of carol n2):7000,connect-timeout=2" - 2>/dev/null | grep -q from || fail "alice on $node reaches the group"
	done
	[[ $(resolves dave n1 db.carol.bed) == "$(pods_of carol)" ]] || fail "a name of carol's is $(resolves dave n1 db.carol.bed)"
	[[ -z $(resolves dave n1 db) ]] || fail "a name of carol's is one of dave's"
	[[ -z $(resolves alice n1 db.carol.bed) ]] || fail "alice gets a name of the group"
	seen=$(step dave n2 ps -e -o user= | sort -u)
	[[ $seen != *carol* && $seen == *dave* ]] || fail "processes that dave sees: $seen"
	serve dave n1 7000
	on ctl scancel "${jobs[carol]}"
	poll 20 gone carol || fail "the job does not end"
	seen=$(step dave n2 socat -u "TCP:$(pod_of dave n1):7000,connect-timeout=5" - 2>&1)
	[[ $seen == "from $(pod_of dave n2)" ]] || fail "dave alone: $seen"
}
