# shellcheck shell=bash
# Gateways: ctl and login forward between pods and the world behind the router.

# Addresses reached with NAT, and without it.
translated=198.51.100.10
untranslated=203.0.113.1

# outside CMD... runs a command in the network of the outside.
outside() { nsenter -t "$(world)" -n "$@"; }
world() { pgrep -of "httpd -f -v -p 80 -h $(settings eval 'echo $state')/web"; }

# listen_outside ADDRESS SCRIPT starts a server that runs the script for each
# connection. It belongs to no host, so only its process number ends it.
listen_outside() {
	(exec nsenter -t "$(world)" -n socat "TCP-LISTEN:7000,bind=$1,reuseaddr,fork" SYSTEM:"$2" >/dev/null 2>&1) &
	helpers+=($!)
}

router() { nsenter -t "$(settings eval 'cat $state/pid/supervisor')" -n "$@"; }

# outside_serves starts two servers that print who connected and then repeat their
# input. It also adds the route back to pods without NAT.
outside_serves() {
	local address
	outside ip addr replace $untranslated/32 dev lo
	router ip route replace $untranslated via $translated
	router ip route replace "$pods" via "$(address login)"
	for address in $translated $untranslated; do
		listen_outside $address 'echo from $SOCAT_PEERADDR; sed -u /^end\$/q'
	done
	poll 10 eval '[[ $(outside ss -Hltn "sport = :7000" | wc -l) == 2 ]]' || fail "no server outside"
}

# reaches USER NODE ADDRESS:PORT prints the server's answer. It runs in the pod but
# without Slurm, so the login host may be unreachable.
reaches() { root "$1" "$2" socat -t 5 - "TCP:$3,connect-timeout=2" 2>&1 </dev/null; }

gateway_of() { # USER NODE
	on "$2" /srv/site/berthd status | sed 's/^[^:]*: //; s/; /\n/g' | sed -n "s/^${jobs[$1]} uid .* gateway //p"
}

host_of() { [[ $1 == "$(address ctl)" ]] && echo ctl || echo login; }

# pair gives alice two jobs. lost is the number of the job whose pod on n1 has the
# gateway login, and left the number of the one that has ctl.
pair() {
	local job
	lost='' left=''
	for job in 1 2; do
		job alice
		poll 10 eval '[[ -n $(gateway_of alice n1) ]]' || fail "no gateway: $(on n1 /srv/site/berthd status)"
		if [[ $(gateway_of alice n1) == "$(address login)" ]]; then lost=${jobs[alice]}; else left=${jobs[alice]}; fi
	done
	[[ -n $lost && -n $left ]] || fail "both jobs have one gateway: $(on n1 /srv/site/berthd status)"
}

# open_connection opens a connection from the pod of job $left and keeps it open.
open_connection() {
	rm -f "$out/say"
	mkfifo "$out/say"
	: >"$out/heard"
	jobs[alice]=$left
	root alice n1 socat - "TCP:$translated:7000" <"$out/say" >"$out/heard" 2>&1 &
	helpers+=($!)
	exec {connection}>"$out/say"
	echo before >&$connection
	poll 10 grep -qx before "$out/heard" || fail "no connection: $(<"$out/heard")"
	[[ $(head -n 1 "$out/heard") == "from $(address ctl)" ]] || fail "through ctl: $(head -n 1 "$out/heard")"
}

# close_connection writes "end" first, because daemons that were started meanwhile
# also have the pipe open.
close_connection() {
	echo end >&$connection
	exec {connection}>&-
	poll 10 grep -qx end "$out/heard" || fail "the connection does not end"
}

# others_go_on BEGAN [LIMIT] checks the pods after the gateway login was lost at
# BEGAN. Within LIMIT milliseconds its pod uses ctl. The connection through ctl has
# continued, and new ones use ctl too.
others_go_on() {
	local took
	jobs[alice]=$lost
	poll 20 eval '[[ $(gateway_of alice n1) == "$(address ctl)" ]]' || fail "no other gateway: $(on n1 /srv/site/berthd status)"
	took=$(((${EPOCHREALTIME/./} - $1) / 1000))
	say "another gateway after $took ms"
	[[ -z ${2-} ]] || ((took <= $2)) || fail "another gateway after $took ms, want $2"
	poll 10 through ctl || fail "not through the other gateway: $(reaches alice n1 $translated:7000)"
	echo after >&$connection
	poll 10 grep -qx after "$out/heard" || fail "the connection through the gateway that is left: $(<"$out/heard")"
	close_connection
	[[ $(gateway_of alice n1) == "$(address ctl)" ]] || fail "n1: $(on n1 /srv/site/berthd status)"
}
# within prints the limit of others_go_on for the long form, in milliseconds. It doubles
# on a busy machine, where the time until a check gets a processor counts too. The short
# form has no limit.
within() { [[ $(cut -d. -f1 /proc/loadavg) -lt $(nproc) ]] && echo 5000 || echo 10000; }
through() { [[ $(reaches alice n1 $translated:7000) == "from $(address "$1")" ]]; }

# gateways: pods reach the outside through gateways, with the gateway's address or
# their own, as the site configures, and the outside reaches pods. Rules for all users
# and for one user apply. A gateway whose daemon has ended is replaced, and
# connections through the other one continue.
gateways() {
	local lost left connection pod gateway job began
	outside_serves
	pair
	for job in $lost $left; do
		jobs[alice]=$job
		gateway=$(gateway_of alice n1) pod=$(pod_of alice n1)
		[[ $(reaches alice n1 $translated:7000) == "from $gateway" ]] || fail "translated: $(reaches alice n1 $translated:7000), want from $gateway"
		[[ $(reaches alice n1 $untranslated:7000) == "from $pod" ]] || fail "not translated: $(reaches alice n1 $untranslated:7000), want from $pod"
	done
	[[ $(step alice n2 socat -t 5 - "TCP:$translated:7000" 2>&1 </dev/null) == "from $(gateway_of alice n2)" ]] || fail "from a step on n2"
	serve alice n1 8000
	[[ $(outside socat -u "TCP:$pod:8000,bind=$untranslated,connect-timeout=5" -) == "from $untranslated" ]] || fail "the outside does not reach a pod"
	[[ $(outside socat -u "TCP:$pod:8000,connect-timeout=2" - 2>&1) != from* ]] || fail "an address without a rule reaches a pod"
	job bob
	echo hello | root bob n1 socat -t20 - "TCP:$translated:7,connect-timeout=20" 2>&1 | grep -q hello || fail "bob's own rule"
	! echo hello | root alice n1 socat -t2 - "TCP:$translated:7,connect-timeout=2" 2>/dev/null | grep -q hello || fail "alice has bob's rule"
	! outside socat -u "TCP:$(pod_of bob n1):8000,bind=$untranslated,connect-timeout=2" - 2>/dev/null | grep -q . || fail "bob has alice's rule"
	no_router || fail "a gateway forwards packets that are not from pods"
	open_connection
	began=${EPOCHREALTIME/./}
	on login sh -c 'kill -9 $(pgrep -x berthd)'
	wait "${daemons[login]}" 2>/dev/null
	others_go_on "$began"
	start login login run
	poll 20 answers login || fail "berthd does not come back on login"
	poll 20 is_gateway login || fail "login does not become a gateway again: $(etcdctl get --prefix /berth/site/1/gateways/)"
	jobs[alice]=$left
	[[ $(gateway_of alice n1) == "$(address ctl)" ]] || fail "a pod has left a live gateway"
}
# no_router: login does not forward to an address of n2 although it has a route to it.
# The test observes n2's kernel accepting connections, because sshd itself is slow on
# a busy machine.
no_router() {
	local found=no
	on n2 ip addr add 192.0.2.9/32 dev lo
	on login ip route add 192.0.2.9 via "$(address n2)"
	poll 20 on login socat -u /dev/null TCP:192.0.2.9:22,connect-timeout=2 2>/dev/null || fail "login does not know the way: $(on login ip route)"
	router ip route replace 192.0.2.9 via "$(address login)"
	outside socat -u /dev/null TCP:192.0.2.9:22,connect-timeout=2 2>/dev/null && found=yes
	router ip route del 192.0.2.9
	on login ip route del 192.0.2.9
	on n2 ip addr del 192.0.2.9/32 dev lo
	[[ $found == no ]]
}
is_gateway() { etcdctl get "/berth/site/1/gateways/$1" | grep -q .; }

# gateway_cut: a gateway with open connections loses its network, and gets it back.
gateway_cut() {
	local lost left connection began
	outside_serves
	pair
	open_connection
	began=${EPOCHREALTIME/./}
	"$bed" cut login
	others_go_on "$began" "$(within)"
	"$bed" mend login
	poll 20 is_gateway login || fail "login does not become a gateway again: $(tail -n 3 "$out/login.log")"
	job alice
	[[ $(gateway_of alice n1) == "$(address login)" ]] || fail "a new pod does not use the gateway that is back: $(on n1 /srv/site/berthd status)"
}

# gateways_alone: without etcd pods keep using their gateways. A daemon that restarts,
# on their node or on the gateway, does not change that. Without any gateway there is
# no way out, not even through the hosts.
gateways_alone() {
	local lost left connection host
	outside_serves
	pair
	open_connection
	stop_etcd
	for host in n1 ctl; do
		on $host sh -c 'kill -9 $(pgrep -f "[b]erthd run")'
		wait "${daemons[$host]}" 2>/dev/null
		start $host $host run
		poll 20 answers $host || fail "berthd does not come back on $host"
	done
	echo after >&$connection
	poll 10 grep -qx after "$out/heard" || fail "the connection: $(<"$out/heard")"
	close_connection
	jobs[alice]=$lost
	through login || fail "another gateway without etcd: $(reaches alice n1 $translated:7000)"
	start_etcd
	poll 20 registered || fail "etcd does not come back"
	poll 20 is_gateway login && poll 20 is_gateway ctl || fail "gateways do not come back"
	for host in ctl login; do
		kill "${daemons[$host]}"
		wait "${daemons[$host]}"
	done
	poll 20 eval '! is_gateway ctl && ! is_gateway login' || fail "gateways that have ended are kept"
	job bob
	[[ -z $(gateway_of bob n2) ]] || fail "bob has a gateway: $(gateway_of bob n2)"
	# A pod is recorded before it has its routes.
	poll 10 eval '[[ $(reaches bob n2 $translated:7000) == *"No route"* ]]' || fail "without gateways: $(reaches bob n2 $translated:7000)"
	for host in ctl login; do
		start $host $host run
		poll 20 answers $host || fail "berthd does not come back on $host"
	done
	poll 20 eval '[[ $(reaches bob n2 $translated:7000) == from* ]]' || fail "with gateways again: $(reaches bob n2 $translated:7000)"
}

# two_legs: gateways have a separate interface to the outside, and forward on it while
# there are pods. A gateway that loses that link is replaced.
two_legs() {
	local host lost left connection=0 beyond=192.0.2.129
	stop_site
	legs
	configuration | sed "s|^  on: .*|&\n  interfaces: [leg0]|; s|$translated/32, |&$beyond/32, |" >"$out/legs.yaml"
	for host in "${hosts[@]}"; do on "$host" sh -c 'cat >/run/legs.yaml' <"$out/legs.yaml"; done
	start_site --config /run/legs.yaml
	pair
	jobs[alice]=$lost
	poll 10 seen_as 192.0.2.6 || fail "through login: $(reaches alice n1 $beyond:7000)"
	jobs[alice]=$left
	poll 10 seen_as 192.0.2.2 || fail "through ctl: $(reaches alice n1 $beyond:7000)"
	forged
	jobs[alice]=$lost
	on login ip link set leg0 down
	poll 20 seen_as 192.0.2.2 || fail "no other gateway: $(on n1 /srv/site/berthd status)"
	[[ $(on login /srv/site/berthd doctor --config /run/legs.yaml) == *"WRONG interfaces of this gateway have a link: interface leg0"* ]] || fail "the doctor: $(on login /srv/site/berthd doctor --config /run/legs.yaml)"
	on ctl scancel "$lost" "$left"
	poll 20 settled || fail "the jobs do not end"
	for host in ctl login; do
		[[ $(on $host cat /proc/sys/net/ipv4/conf/leg0/forwarding) == 0 ]] || fail "$host still forwards what comes by leg0"
	done
	stop_site
	for host in ctl login; do
		outside ip link del "leg-$host"
		on $host rm /run/legs.yaml
	done
	start_site
}
seen_as() { [[ $(reaches alice n1 $beyond:7000) == "from $1" ]]; }

# forged: a gateway forwards nothing from outside whose source is a pod's address.
forged() {
	local pod=${pods%.*}.14 somewhere=203.0.113.77
	on login nft -f - <<-END
		table ip seen {
			counter arrived { }
			counter forwarded { }
			chain prerouting { type filter hook prerouting priority -300; iifname "leg0" ip saddr $pod counter name arrived; }
			chain forward { type filter hook forward priority 0; iifname "leg0" ip saddr $pod counter name forwarded; }
		}
	END
	outside ip addr add "$pod/32" dev lo
	outside ip route add $somewhere via 192.0.2.6
	poll 10 forged_arrives || fail "no packet arrives: $(on login nft list table ip seen)"
	[[ $(on login nft list counter ip seen forwarded) == *"packets 0 "* ]] || fail "login forwards what comes from outside as a pod's: $(on login nft list table ip seen)"
	outside ip route del $somewhere
	outside ip addr del "$pod/32" dev lo
	on login nft delete table ip seen
}
forged_arrives() {
	echo forged | outside socat -u - "UDP-SENDTO:$somewhere:9,bind=$pod"
	[[ $(on login nft list counter ip seen arrived) != *"packets 0 "* ]]
}

# legs adds cables between the gateways and a server outside that bypass the router.
legs() {
	local number=1 host
	outside ip addr replace $beyond/32 dev lo
	for host in ctl login; do
		outside ip link add "leg-$host" type veth peer name leg0 netns "$(settings eval "cat \$state/pid/$host")"
		outside ip addr add 192.0.2.$number/30 dev "leg-$host"
		outside ip link set "leg-$host" up
		on $host sh -c "ip addr add 192.0.2.$((number + 1))/30 dev leg0; echo 0 >/proc/sys/net/ipv4/conf/leg0/forwarding; echo 0 >/proc/sys/net/ipv4/conf/leg0/rp_filter; ip link set leg0 up; ip route add 192.0.2.128/25 via 192.0.2.$number"
		number=$((number + 4))
	done
	listen_outside $beyond 'echo from $SOCAT_PEERADDR'
}

# restart_site CHANGE restarts berthd on all hosts, with its configuration changed by
# this sed script, or with the original one.
restart_site() {
	local host
	stop_site
	if [[ -z $1 ]]; then
		start_site
		return
	fi
	configuration | sed "$1" >"$out/changed.yaml"
	for host in "${hosts[@]}"; do on "$host" sh -c 'cat >/run/changed.yaml' <"$out/changed.yaml"; done
	start_site --config /run/changed.yaml
}

# gateway_range: a gateway gives each pod its own address from a range, for the pod's
# lifetime. Connections to these addresses from outside reach nothing.
gateway_range() {
	local lost left net job seen
	net=$(address ctl | sed 's/[0-9]*$//')
	outside_serves
	restart_site "s|^  on: .*|&\n  as: {login: ${net}192-${net}195}|"
	pair
	jobs[alice]=$lost
	seen=$(reaches alice n1 $translated:7000)
	[[ $seen =~ ^from\ ${net//./\\.}19[2-5]$ ]] || fail "through login: $seen"
	for job in 1 2 3 4; do
		[[ $(reaches alice n1 $translated:7000) == "$seen" ]] || fail "connection $job has another address"
	done
	[[ $(reaches alice n1 $untranslated:7000) == "from $(pod_of alice n1)" ]] || fail "not translated: $(reaches alice n1 $untranslated:7000)"
	jobs[alice]=$left
	[[ $(reaches alice n1 $translated:7000) == "from $(address ctl)" ]] || fail "through ctl: $(reaches alice n1 $translated:7000)"
	on login nft -f - <<-END
		table ip seen {
			counter arrived { }
			counter sent { }
			chain prerouting { type filter hook prerouting priority -300; ip daddr ${net}193 udp dport 9 counter name arrived; }
			chain postrouting { type filter hook postrouting priority 200; ip daddr ${net}193 counter name sent; ip saddr ${net}193 counter name sent; }
		}
	END
	poll 10 eval 'echo stray | outside socat -u - UDP-SENDTO:${net}193:9; [[ $(on login nft list counter ip seen arrived) != *"packets 0 "* ]]' ||
		fail "nothing arrives: $(on login nft list table ip seen)"
	[[ $(on login nft list counter ip seen sent) == *"packets 0 "* ]] || fail "login sends on, or answers, what belongs to no connection: $(on login nft list table ip seen)"
	on login nft delete table ip seen
	on ctl scancel "$lost" "$left"
	poll 20 settled || fail "the jobs do not end"
	restart_site ''
}

# far_gateways: no host is on the link of another. Gateways are reached by a tunnel in
# both directions, even if hosts filter by reverse path, and pods on two nodes reach
# each other.
far_gateways() {
	local lost left connection pod host filter node job began
	outside_serves
	stop_site
	router sh -c 'echo 0 >/proc/sys/net/ipv4/conf/all/send_redirects; echo 0 >/proc/sys/net/ipv4/conf/br0/send_redirects'
	for host in "${hosts[@]}"; do alone "$host"; done
	start_site
	for filter in 0 1; do
		for host in "${hosts[@]}"; do on $host sh -c "echo $filter >/proc/sys/net/ipv4/conf/all/rp_filter"; done
		pair
		jobs[alice]=$lost
		pod=$(pod_of alice n1)
		poll 10 through login || fail "translated: $(reaches alice n1 $translated:7000)"
		[[ $(reaches alice n1 $untranslated:7000) == "from $pod" ]] || fail "not translated: $(reaches alice n1 $untranslated:7000)"
		serve alice n1 8000
		[[ $(outside socat -u "TCP:$pod:8000,bind=$untranslated,connect-timeout=5" - 2>&1) == "from $untranslated" ]] || fail "the outside does not reach a pod"
		serve alice n2 7000
		talks n1 n2 || fail "pods on two nodes with a router between them do not reach each other: $heard"
		[[ $(on n1 ip route show table all) == *"dev bertht000000"* ]] || fail "there is no tunnel: $(on n1 ip route show table all)"
		[[ $filter == 1 ]] || on ctl scancel "$lost" "$left"
		[[ $filter == 1 ]] || poll 20 settled || fail "the jobs do not end"
	done
	open_connection
	began=${EPOCHREALTIME/./}
	on login sh -c 'kill -9 $(pgrep -f "[b]erthd run")'
	wait "${daemons[login]}" 2>/dev/null
	others_go_on "$began" "$(within)"
	# The host of that gateway still has routes to pods through the tunnel. Without
	# berthd, programs there, including srun, are reached as before by its former pods
	# and by others.
	poll 10 eval '! is_gateway login' || fail "a gateway that has ended is kept"
	for node in n1 n2; do
		for job in $lost $left; do
			jobs[alice]=$job
			[[ $(root alice $node socat -T5 -u "TCP:$(address login):22,connect-timeout=5" - 2>/dev/null </dev/null | head -c 3) == SSH ]] ||
				fail "login does not answer a pod on $node: $(on $node ip route show table all)"
		done
	done
	start login login run
	poll 20 answers login || fail "berthd does not come back on login"
	on ctl scancel "$lost" "$left"
	poll 20 settled || fail "the jobs do not end"
	stop_site
	for host in "${hosts[@]}"; do
		on $host sh -c 'echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter'
		together "$host"
	done
	start_site
}

# alone HOST leaves only the router on its link. together HOST undoes it.
alone() {
	local router=$(router_address)
	on "$1" sh -c "ip addr add $(address "$1")/32 dev eth0; ip addr del $(address "$1")/24 dev eth0
		ip route replace $router dev eth0; ip route replace default via $router"
}
together() {
	on "$1" sh -c "ip addr add $(address "$1")/24 dev eth0; ip addr del $(address "$1")/32 dev eth0
		ip route replace default via $(router_address); ip route del $(router_address) dev eth0"
}
router_address() { router ip -o -4 addr show dev br0 | sed 's/.*inet //; s:/.*::'; }

# gateway_unseen: a gateway is alive, but one of the nodes cannot reach it. Pods of
# that node get another gateway, pods of other nodes stay.
gateway_unseen() {
	local lost left there
	outside_serves
	pair
	jobs[alice]=$lost
	there=$(gateway_of alice n2)
	on n1 nft -f - <<-END
		table ip unseen {
			chain input { type filter hook input priority -300; ip saddr $(address login) icmp type echo-reply drop; }
		}
	END
	poll 20 through ctl || fail "no other gateway: $(on n1 /srv/site/berthd status)"
	is_gateway login || fail "login is no longer a gateway"
	[[ $(gateway_of alice n2) == "$there" ]] || fail "a pod on n2 has left its gateway"
	on n1 nft delete table ip unseen
	# A gateway that answers again is used for new pods; others stay where they are.
	poll 20 eval 'job alice; [[ $(gateway_of alice n1) == "$(address login)" ]] || { on ctl scancel ${jobs[alice]}; false; }' || fail "login is not used again: $(on n1 /srv/site/berthd status)"
	jobs[alice]=$lost
	[[ $(gateway_of alice n1) == "$(address ctl)" ]] || fail "a pod has left a live gateway"
}

# flows_counted: policy bounds the connections that a host tracks for a pod. A pod at
# the bound gets no more until it closes some. The pods of others, the user's pod on
# another node and the host are not affected, and new jobs do not reset the count.
flows_counted() {
	local seen count client who tell
	# shellcheck disable=SC2016
	client='
import socket, struct, sys, time
def connects():
    s = socket.socket()
    s.settimeout(2)
    # The server closes nothing: a reset ends the connection for both.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        s.connect((sys.argv[1], 6900))
        return s
    except OSError:
        return None
held, refused = [], 0
# With each new connection the kernel removes a few that have ended, such as connections of Slurm
# for a step.
while refused < 5 and len(held) < 400:
    s = connects()
    if s:
        held.append(s)
    else:
        refused += 1
        time.sleep(0.2)
print("opened", len(held), flush=True)
sys.stdin.readline()
print("one more:", connects() is not None, flush=True)
for s in held:
    s.close()
sys.stdin.readline()
print("afterwards:", connects() is not None, flush=True)'
	restart_site 's|^policy:|&\n  flows: 256|'
	job alice
	"$bed" run n2 python3 -c '
import socket
server, held = socket.create_server(("", 6900), backlog=500), []
while True: held.append(server.accept())' >/dev/null 2>&1 &
	helpers+=($!)
	poll 20 connects_to_n2 n1 || fail "nobody listens on n2"
	mkfifo "$out/flows"
	own alice n1 python3 -c "$client" "$(address n2)" <"$out/flows" >"$out/opened" 2>&1 &
	helpers+=($!)
	exec {tell}>"$out/flows"
	poll 40 grep -q opened "$out/opened" || fail "the client prints nothing: $(<"$out/opened")"
	count=$(grep -o 'opened [0-9]*' "$out/opened" | cut -d' ' -f2)
	# The step that waits in the pod has some connections too.
	((count > 200 && count <= 256)) || fail "the pod has $count connections, of 256"
	# Rules are replaced when pods are added.
	job bob
	for who in bob:n1 alice:n2; do
		seen=$(root "${who%:*}" "${who#*:}" timeout 5 python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], 6900), 4); print("reached")' "$(address n2)" 2>&1)
		[[ $seen == reached ]] || fail "the pod of ${who/:/ on }: $seen"
	done
	connects_to_n2 n1 || fail "the host of the pod opens no connections"
	echo >&"$tell"
	poll 10 grep -q 'one more' "$out/opened" || fail "the client prints nothing more: $(<"$out/opened")"
	grep -q 'one more: False' "$out/opened" || fail "a new job let the pod start again: $(<"$out/opened")"
	poll 10 eval '[[ $(own alice n1 timeout 5 python3 -c "import socket, sys; socket.create_connection((sys.argv[1], 6900), 4); print(\"reached\")" "$(address n2)" 2>&1) == reached ]]' ||
		fail "the pod has closed its connections, and gets no new ones"
	echo >&"$tell"
	poll 10 grep -q 'afterwards: True' "$out/opened" || fail "afterwards: $(<"$out/opened")"
	exec {tell}>&-
	rm "$out/flows"
	on ctl scancel "${jobs[alice]}" "${jobs[bob]}"
	poll 20 settled || fail "the jobs do not end"
	restart_site ''
}

# connections_forgotten: policy lets only one user's pod connect to a host. The next
# pod with that address cannot continue its connection from the same port, nor a
# connection that a process of the host has opened to it.
connections_forgotten() {
	local first seen port
	restart_site "/^  egress:/,/^  ingress:/s|/24\\]|&\\n    ports: [tcp/1-65535]|; s|^    alice:|&\\n      egress:\\n      - addresses: [$(address n2)/32]\\n        ports: [udp/6901]|"
	"$bed" run n2 "${answers_udp[@]}" 6901 >/dev/null 2>&1 &
	helpers+=($!)
	poll 20 on n2 sh -c 'ss -Hlun "sport = :6901" | grep -q .' || fail "nobody listens on n2"
	job alice
	first=$(pod_of alice n1)
	seen=$(root alice n1 "${asks[@]}" 5000 "$(address n2)" 6901)
	[[ $seen == "heard 5000" ]] || fail "from alice's pod to n2: $seen"
	"$bed" run n1 nsenter --net="/run/berthd/net/${jobs[alice]}" "${answers_udp[@]}" 7001 >/dev/null 2>&1 &
	helpers+=($!)
	poll 20 root alice n1 sh -c 'ss -Hlun "sport = :7001" | grep -q .' || fail "nobody listens in alice's pod"
	seen=$(as alice n1 "${asks[@]}" 5000 "$first" 7001)
	[[ $seen == "heard 5000" ]] || fail "from alice on n1 to her pod: $seen"
	on ctl scancel "${jobs[alice]}"
	poll 20 settled || fail "the job does not end"
	job bob
	[[ $(pod_of bob n1) == "$first" ]] || fail "bob's pod has $(pod_of bob n1), want the address that alice's had, $first"
	for port in 5001 5000; do
		seen=$(root bob n1 "${asks[@]}" $port "$(address n2)" 6901 2>&1)
		[[ $seen != heard* ]] || fail "bob's pod, which may not, says to n2 from port $port: $seen"
	done
	"$bed" run n1 nsenter --net="/run/berthd/net/${jobs[bob]}" "${answers_udp[@]}" 7001 >/dev/null 2>&1 &
	helpers+=($!)
	poll 20 root bob n1 sh -c 'ss -Hlun "sport = :7001" | grep -q .' || fail "nobody listens in bob's pod"
	for port in 5001 5000; do
		seen=$(as alice n1 "${asks[@]}" $port "$first" 7001 2>&1)
		[[ $seen != heard* ]] || fail "alice on n1 says to bob's pod from port $port: $seen"
	done
	on ctl scancel "${jobs[bob]}"
	poll 20 settled || fail "the job does not end"
	restart_site ''
}
# asks PORT ADDRESS PORT sends the number of its first port by UDP, from that port.
# answers_udp PORT answers.
asks=(timeout 5 python3 -c '
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", int(sys.argv[1])))
s.settimeout(2)
s.connect((sys.argv[2], int(sys.argv[3])))
s.send(sys.argv[1].encode())
print(s.recv(100).decode())')
answers_udp=(python3 -c '
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", int(sys.argv[1])))
while True:
    said, who = s.recvfrom(100)
    s.sendto(b"heard " + said, who)')

connects_to_n2() { on "$1" python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], 6900), 4)' "$(address n2)" 2>/dev/null; }
