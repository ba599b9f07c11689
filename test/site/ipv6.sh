# shellcheck shell=bash
# IPv6 addresses of pods, beside their IPv4 ones.

# The ranges of pods and hosts, and the servers outside.
pods6=fd62:6974:6573::/96 hosts6=2001:db8:7::/64
translated6=2001:db8:8::10 untranslated6=2001:db8:9::1

# second ADDRESS prints the IPv6 address of the pod with this IPv4 address, as the
# kernel writes it. full6 ADDRESS prints it as socat does.
second() {
	local a b c d
	IFS=. read -r a b c d <<<"$1"
	printf 'fd62:6974:6573::%x:%x' $((a << 8 | b)) $((c << 8 | d))
}
full6() {
	# shellcheck disable=SC2046
	printf '[fd62:6974:6573:0000:0000:0000:%02x%02x:%02x%02x]' $(tr . ' ' <<<"$1")
}
# host6 HOST and full_host6 HOST print the same for hosts.
declare -A numbers6=([ctl]=1 [login]=2 [n1]=11 [n2]=12 [router]=fe)
host6() { echo "2001:db8:7::${numbers6[$1]}"; }
full_host6() { printf '[2001:0db8:0007:0000:0000:0000:0000:%04x]' "0x${numbers6[$1]}"; }

# with_second adds to the configuration what the cases below need.
with_second() {
	sed "s|^pods: .*|&\nipv6: {pods: \"$pods6\", hosts: \"$hosts6\"}|
		s|^  networks:\$|&\n  - {addresses: [\"::/0\"], nat: true}\n  - addresses: [\"$untranslated6/128\"]|
		s|^  egress:\$|&\n  - addresses: [\"$hosts6\"]\n  - {addresses: [\"$translated6/128\", \"$untranslated6/128\"], ports: [tcp/7000]}|
		s|^  ingress:\$|&\n  - {addresses: [\"$(host6 login)/128\"], ports: [tcp/1024-65535]}|
		s|^    alice:\$|&\n      egress:\n      - {addresses: [\"$translated6/128\"], ports: [tcp/7001]}|
		s|^      - addresses: \[$untranslated/32\]\$|      - addresses: [$untranslated/32, \"$untranslated6/128\"]|"
}

# hosts_speak gives the hosts, the router and the outside IPv6 addresses. silent
# undoes it.
hosts_speak() {
	local host
	router sh -c "ip addr add $(host6 router)/64 dev br0 nodad; ip addr add 2001:db8:8::1/64 dev outside nodad
		echo 1 >/proc/sys/net/ipv6/conf/all/forwarding; ip route replace $untranslated6 via $translated6; ip route replace $pods6 via $(host6 login)"
	outside sh -c "ip addr add $translated6/64 dev eth0 nodad; ip addr add $untranslated6/128 dev lo; ip route replace default via 2001:db8:8::1"
	for host in "${hosts[@]}"; do on "$host" sh -c "ip addr add $(host6 "$host")/64 dev eth0 nodad; ip route replace default via $(host6 router)"; done
}
silent() {
	local host
	for host in "${hosts[@]}"; do on "$host" sh -c "ip -6 route del default; ip addr del $(host6 "$host")/64 dev eth0"; done
	outside sh -c "ip -6 route del default; ip addr del $untranslated6/128 dev lo; ip addr del $translated6/64 dev eth0"
	router sh -c "ip route del $pods6; ip route del $untranslated6; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding
		ip addr del 2001:db8:8::1/64 dev outside; ip addr del $(host6 router)/64 dev br0"
}

# ipv6: if the site has a range, pods also have an IPv6 address, by tunnels and by
# routes, and everything that holds for the IPv4 address holds for it.
ipv6() { with_ipv6 "pods_speak outside_speaks nobody_spoofs6 apart6 begins6 far6" "pods_speak outside_speaks nobody_spoofs6 apart6 routed_afar6"; }

# ipv6_programs and ipv6_losses: cases that know nothing of IPv6 pass where pods have it.
ipv6_programs() { with_ipv6 "$programs_beside_ipv6" "$programs_beside_ipv6"; }
ipv6_losses() { with_ipv6 "$losses_beside_ipv6" "$losses_beside_ipv6"; }
programs_beside_ipv6="mpi mpirun kubernetes names_of_runs sessions groups gateways ssh_into_job slurm_from_login"
losses_beside_ipv6="daemon_killed etcd_away etcd_lost lost_epilog"

# with_ipv6 BY-TUNNELS BY-ROUTES runs these cases. SITE_IPV6="mpi kubernetes" runs only the
# named ones.
with_ipv6() {
	local part told=no
	hosts_speak
	ipv6=with_second
	with_routes ''
	for part in ${SITE_IPV6:-$1}; do
		[[ $failed == yes ]] || "$part"
		part_ends "$part, by tunnels"
	done
	with_routes "$a_subnet_each"
	for part in ${SITE_IPV6:-$2}; do
		[[ $failed == yes ]] || "$part"
		part_ends "$part, by routes"
	done
	ipv6=''
	with_routes ''
	silent
}

# serve6 USER NODE PORT does the same as serve.
serve6() {
	step "$1" "$2" socat "TCP6-LISTEN:$3,reuseaddr,fork" SYSTEM:'echo from $SOCAT_PEERADDR' >/dev/null 2>&1 &
	helpers+=($!)
	poll 20 listens "$@" || fail "no server in the pod of $1 on $2"
}

# hears6 USER NODE ADDRESS:PORT prints what the server there sends to the pod.
hears6() { root "$1" "$2" socat -u "TCP6:$3,connect-timeout=3" - 2>&1; }

# pods_speak: a pod has one IPv6 address, usable at once, and gets no other from a
# router. Pods of a user reach each other by it, on one node and on two, by names, and
# hosts as the site's rules permit.
pods_speak() {
	local node seen first second_job pod
	job alice -J db
	first=${jobs[alice]}
	for node in n1 n2; do
		seen=$(step alice $node sh -c 'ip -o -6 addr show dev eth0 | sed "s/.*inet6 //; s/ .*//"; ip -o -6 addr show dev eth0 tentative; cat /proc/sys/net/ipv6/conf/eth0/accept_ra /proc/sys/net/ipv6/conf/eth0/accept_dad')
		[[ $seen == "$(second "$(pod_of alice $node)")/96"$'\n0\n0' ]] || fail "on $node: $seen, want $(second "$(pod_of alice $node)")"
	done
	serve6 alice n2 7000
	pod=$(pod_of alice n2)
	[[ $(hears6 alice n1 "$(full6 "$pod"):7000") == "from $(full6 "$(pod_of alice n1)")" ]] || fail "n1 to n2: $(hears6 alice n1 "$(full6 "$pod"):7000")"
	[[ $(step alice n1 getent ahostsv6 pod1 | awk '$2 == "STREAM" { print $1 }') == "$(second "$pod")" ]] || fail "pod1 is $(step alice n1 getent ahostsv6 pod1)"
	[[ $(step alice n1 getent hosts "$(second "$pod")") == *pod1.db.alice.bed ]] || fail "the name of $(second "$pod"): $(step alice n1 getent hosts "$(second "$pod")")"
	on login socat TCP6-LISTEN:6901,reuseaddr,fork SYSTEM:'echo from $SOCAT_PEERADDR' >/dev/null 2>&1 &
	helpers+=($!)
	poll 20 eval '[[ $(hears6 alice n1 "[$(host6 login)]:6901") == "from $(full6 "$(pod_of alice n1)")" ]]' || fail "a pod to a host: $(hears6 alice n1 "[$(host6 login)]:6901")"
	poll 10 eval '[[ $(as alice login socat -u "TCP6:$(full6 "$pod"):7000,connect-timeout=3" - 2>&1) == "from $(full_host6 login)" ]]' || fail "a host to a pod: $(on login ip -6 route)"
	[[ $(as alice n2 socat -u "TCP6:$(full6 "$pod"):7000,connect-timeout=3" - 2>&1) == from* ]] || fail "alice on the pod's own host"
	for node in n1 n2; do
		[[ $(as bob $node socat -u "TCP6:$(full6 "$pod"):7000,connect-timeout=2" - 2>&1) != from* ]] || fail "bob on $node reaches alice's pod"
	done
	job alice
	second_job=${jobs[alice]}
	[[ $(hears6 alice n2 "$(full6 "$pod"):7000") == "from $(full6 "$(pod_of alice n2)")" ]] || fail "two jobs on one node: $(hears6 alice n2 "$(full6 "$pod"):7000")"
	[[ $(on n2 /srv/site/berthd status) == *"$second_job uid $(settings id_of alice) $(pod_of alice n2) $(second "$(pod_of alice n2)")"* ]] || fail "the status: $(on n2 /srv/site/berthd status)"
	on n2 grep -q "\"pod\":\"$first\".*\"ipv6\":\"$(second "$pod")\"" /var/log/berth-audit.log || fail "the audit log: $(on n2 tail -n 2 /var/log/berth-audit.log)"
	seen=$(on n1 /srv/site/berthd doctor 2>&1) && [[ $seen == *"ok    this host speaks IPv6"* ]] || fail "the doctor: $seen"
	[[ $(on n1 nft list chain inet berth forward) == *"meta nfproto ipv6 drop"* ]] || fail "n1 is a router for others: $(on n1 nft list ruleset)"
}

# outside_speaks: gateways lead to the outside, with their address or the pod's own,
# and the outside reaches pods, as rules for all users and for one user permit.
outside_speaks() {
	local pod gateway
	listen_outside6 "$translated6"
	listen_outside6 "$untranslated6"
	poll 10 eval '[[ $(outside ss -Hltn "sport >= :7000 and sport <= :7001" | wc -l) == 4 ]]' || fail "no server outside"
	job alice
	job bob
	pod=$(pod_of alice n1)
	poll 10 eval '[[ -n $(gateway_of alice n1) && -n $(gateway_of bob n1) ]]' || fail "no gateway: $(on n1 /srv/site/berthd status)"
	gateway=$(host_of "$(gateway_of alice n1)")
	poll 10 eval '[[ $(reaches6 alice n1 "[$translated6]:7000") == "from $(full_host6 "$gateway")" ]]' || fail "translated: $(reaches6 alice n1 "[$translated6]:7000"), want from $(full_host6 "$gateway")"
	[[ $(reaches6 alice n1 "[$untranslated6]:7000") == "from $(full6 "$pod")" ]] || fail "not translated: $(reaches6 alice n1 "[$untranslated6]:7000")"
	[[ $(reaches6 alice n1 "[$translated6]:7001") == from* ]] || fail "alice's own rule: $(reaches6 alice n1 "[$translated6]:7001")"
	[[ $(reaches6 bob n1 "[$translated6]:7001") != from* ]] || fail "bob has alice's rule"
	[[ $(reaches6 bob n1 "[$translated6]:7000") == from* ]] || fail "bob reaches nothing outside: $(reaches6 bob n1 "[$translated6]:7000")"
	serve6 alice n1 8000
	[[ $(outside socat -u "TCP6:$(full6 "$pod"):8000,bind=[$untranslated6],connect-timeout=5" - 2>&1) == "from [2001:0db8:0009:0000:0000:0000:0000:0001]" ]] || fail "the outside does not reach a pod"
	[[ $(outside socat -u "TCP6:$(full6 "$pod"):8000,connect-timeout=2" - 2>&1) != from* ]] || fail "an address without a rule reaches a pod"
}
listen_outside6() { # ADDRESS
	local port
	for port in 7000 7001; do
		(exec nsenter -t "$(world)" -n socat "TCP6-LISTEN:$port,bind=[$1],reuseaddr,fork,ipv6only=1" SYSTEM:'echo from $SOCAT_PEERADDR' >/dev/null 2>&1) &
		helpers+=($!)
	done
}
reaches6() { root "$1" "$2" socat -u "TCP6:$3,connect-timeout=2" - 2>&1; }

# apart6: pods of two users do not reach each other, on one node and on two, whatever
# root in one sends. They do not see each other's names.
apart6() {
	local node a b own to mac frames ip kind
	job alice
	job bob
	serve6 bob n1 7000
	b=$(pod_of bob n1)
	for node in n1 n2; do
		[[ $(hears6 alice $node "$(full6 "$b"):7000") != from* ]] || fail "alice on $node reaches bob"
	done
	[[ -z $(step alice n1 getent hosts "$(second "$b")" 2>/dev/null) ]] || fail "alice sees bob's name"
	start_listener bob n1
	for node in n1 n2; do
		a=$(pod_of alice $node)
		own=$(mac_of "$a")
		frames=()
		for mac in "$own" "$(mac_of "$(pod_of bob n2)")"; do
			for ip in "$(second "$a")" "$(second "$(pod_of bob n2)")" "$(host6 ctl)" fd62:6974:6573::ac8:1 fe80::1; do
				for to in "$(mac_of "$b")" 33:33:00:00:00:01 02:62:62:65:72:74; do
					for kind in udp6 ra "na:$(second "$(pod_of bob n2)")"; do
						frames+=("$node/$kind/$to/$mac/$ip=$kind,$to,$mac,$ip,$(second "$b")")
						frames+=("$node/$kind/$to/$mac/$ip/all=$kind,$to,$mac,$ip,ff02::1")
					done
				done
			done
		done
		root alice $node /srv/site/frames send eth0 "${frames[@]}" || fail "send"
	done
	# A user of a host, outside of any pod, pretends to be a pod or another host.
	for node in login n2 n1; do
		for ip in "$(second "$(pod_of bob n2)")" "$(host6 ctl)"; do
			as alice $node /srv/site/frames forge "$ip" "[$(second "$b")]:7000" "$node/forged/$ip" || fail "forge on $node"
		done
	done
	still_listens bob n1 "$(pod_of bob n2)" n2
	! grep -v control "$out/frames" | grep received || fail "bob's pod received: $(grep -v control "$out/frames" | head -n 5)"
	# Nor does it leave through that pod's gateway.
	poll 10 eval '[[ -n $(gateway_of bob n1) ]]' || fail "no gateway: $(on n1 /srv/site/berthd status)"
	: >"$out/outside"
	nsenter -t "$(world)" -n "$stage/frames" listen eth0 >"$out/outside" 2>&1 </dev/null &
	helpers+=($!)
	poll 10 grep -q listening "$out/outside" || fail "no listener outside: $(<"$out/outside")"
	as alice n1 /srv/site/frames forge "$(second "$b")" "[$translated6]:9" forged || fail "forge on n1"
	as alice n1 /srv/site/frames forge "$(host6 n1)" "[$translated6]:9" control || fail "send the control packet"
	poll 10 grep -q "received control" "$out/outside" || fail "the outside receives nothing at all: $(<"$out/outside")"
	! grep "received forged" "$out/outside" || fail "a user of n1 is let out as bob's pod"
}

# nobody_spoofs6: no frame without the sender's own addresses passes, not even to pods
# of the same user. On a bridge, where pods are neighbours, no pod can act as a router
# or as another pod.
nobody_spoofs6() {
	local a b hop frames other=fd62:6974:6573::ac8:909
	job alice
	a=$(pod_of alice n1) b=$(pod_of alice n2)
	hop=$(hop_of "$b")
	start_listener alice n2
	frames=("ip=udp6,$hop,$(mac_of "$a"),$other,$(second "$b")" "mac=udp6,$hop,$(mac_of 10.200.9.9),$(second "$a"),$(second "$b")"
		"local=udp6,$hop,$(mac_of "$a"),fe80::1,$(second "$b")" "none=udp6,$hop,$(mac_of "$a"),::,$(second "$b")"
		"all=ra,33:33:00:00:00:01,$(mac_of "$a"),fe80::1,ff02::1" "claim=na:$other,$hop,$(mac_of "$a"),$other,$(second "$b")")
	[[ -n $subnets ]] || frames+=("router=ra,$hop,$(mac_of "$a"),$(second "$a"),$(second "$b")" "routers=ra,33:33:00:00:00:01,$(mac_of "$a"),$(second "$a"),ff02::1"
		"neighbour=na:$other,$hop,$(mac_of "$a"),$(second "$a"),$(second "$b")" "gateway=na:fd62:6974:6573::ac8:1,$hop,$(mac_of "$a"),$(second "$a"),$(second "$b")")
	root alice n1 /srv/site/frames send eth0 "${frames[@]}" "own=udp6,$hop,$(mac_of "$a"),$(second "$a"),$(second "$b")" || fail "send"
	still_listens alice n2 "$a" n1
	poll 10 grep -q "received own" "$out/frames" || fail "a frame with the sender's own addresses does not pass: $(<"$out/frames")"
	! grep -Ev 'control|received own' "$out/frames" | grep received || fail "spoofed frames pass: $(<"$out/frames")"
}

# far6: gateways on another link than a pod's node are reached by a tunnel.
far6() {
	local host gateway
	stop_site
	router sh -c 'echo 0 >/proc/sys/net/ipv4/conf/all/send_redirects; echo 0 >/proc/sys/net/ipv4/conf/br0/send_redirects'
	for host in "${hosts[@]}"; do alone "$host"; done
	start_site
	listen_outside6 "$translated6"
	listen_outside6 "$untranslated6"
	job alice
	poll 10 eval '[[ -n $(gateway_of alice n1) ]]' || fail "no gateway: $(on n1 /srv/site/berthd status)"
	gateway=$(host_of "$(gateway_of alice n1)")
	poll 10 eval '[[ $(reaches6 alice n1 "[$translated6]:7000") == "from $(full_host6 "$gateway")" ]]' || fail "translated, over a tunnel: $(reaches6 alice n1 "[$translated6]:7000"), want from $(full_host6 "$gateway")"
	poll 10 eval '[[ $(reaches6 alice n1 "[$untranslated6]:7000") == "from $(full6 "$(pod_of alice n1)")" ]]' || fail "not translated, over a tunnel: $(reaches6 alice n1 "[$untranslated6]:7000")"
	[[ $(on n1 ip -6 route show table all) == *"dev bertht000000"* ]] || fail "there is no tunnel: $(on n1 ip -6 route show table all)"
	on ctl scancel "${jobs[alice]}"
	poll 20 settled || fail "the job does not end"
	stop_site
	for host in "${hosts[@]}"; do together "$host"; done
	start_site
}

# routed_afar6: no host is on the link of another. The site's routers know the IPv6
# subnets of nodes too.
routed_afar6() {
	local host node pod port
	stop_site
	router sh -c "echo 0 >/proc/sys/net/ipv4/conf/all/send_redirects; echo 0 >/proc/sys/net/ipv4/conf/br0/send_redirects
		ip route replace 10.200.1.0/29 via $(address n1); ip route replace 10.200.1.8/29 via $(address n2)
		ip route replace $(second 10.200.1.0)/125 via $(host6 n1); ip route replace $(second 10.200.1.8)/125 via $(host6 n2)"
	for host in "${hosts[@]}"; do
		alone "$host"
		on "$host" sh -c "ip addr del $(host6 "$host")/64 dev eth0; ip addr add $(host6 "$host")/128 dev eth0 nodad
			ip route replace $(host6 router) dev eth0; ip route replace default via $(host6 router)"
	done
	# No frame passes between hosts, and the router sends no redirects.
	for port in $(ports); do router ip link set "$port" type bridge_slave isolated on; done
	[[ $(router ip -d link show master br0 | grep -c "isolated on") == "$(ports | wc -l)" ]] || fail "the hosts are on one link: $(router ip -d link show master br0)"
	router nft -f - <<-'END'
		table ip6 afar {
			chain output { type filter hook output priority 0; icmpv6 type nd-redirect drop; }
		}
	END
	start_site
	listen_outside6 "$translated6"
	listen_outside6 "$untranslated6"
	job alice
	job bob
	serve6 alice n2 7000
	pod=$(pod_of alice n2)
	poll 10 eval '[[ $(hears6 alice n1 "$(full6 "$pod"):7000") == "from $(full6 "$(pod_of alice n1)")" ]]' || fail "pods do not talk over a router: $(hears6 alice n1 "$(full6 "$pod"):7000") $(on n1 ip -6 route)"
	[[ $(hears6 bob n1 "$(full6 "$pod"):7000") != from* ]] || fail "bob reaches alice over a router"
	[[ $(on n1 ip -6 route show table all) != *"$(second 10.200.1.8)/125 via"* ]] || fail "a route to a host that is not on the link: $(on n1 ip -6 route)"
	[[ -z $subnets ]] || grep -q "site's routers have to lead its subnet to it.*subnet=10.200.1.8/29 node=$(address n2) ipv6=$(second 10.200.1.8)/125" "$out/n1.log" || fail "berthd does not say that routers have to know the subnet: $(tail -n 3 "$out/n1.log")"
	poll 10 eval '[[ $(as alice login socat -u "TCP6:$(full6 "$pod"):7000,connect-timeout=3" - 2>&1) == "from $(full_host6 login)" ]]' || fail "a host to a pod: $(on login ip -6 route)"
	[[ $(root alice n1 socat -T5 -u "TCP6:[$(host6 login)]:22,connect-timeout=5" - 2>/dev/null </dev/null | head -c 3) == SSH ]] || fail "a pod to a host: $(on n1 ip -6 route show table all)"
	# The login host is a gateway and reached by a tunnel.
	stay alice
	poll 10 eval '[[ $(on login nsenter --net="/run/berthd/net/login-$(settings id_of alice)-login" socat -u "TCP6:$(full6 "$pod"):7000,connect-timeout=5" - 2>&1) == "from $(full6 "$(session_address alice)")" ]]' ||
		fail "a session does not reach a pod over a router: $(on login ip -6 route)"
	for node in n1 n2; do
		poll 10 eval '[[ -n $(gateway_of alice $node) ]]' || fail "no gateway: $(on $node /srv/site/berthd status)"
		host=$(host_of "$(gateway_of alice $node)")
		poll 10 eval '[[ $(reaches6 alice $node "[$translated6]:7000") == "from $(full_host6 "$host")" ]]' || fail "translated, $node: $(reaches6 alice $node "[$translated6]:7000"), want from $(full_host6 "$host")"
		[[ $(reaches6 alice $node "[$untranslated6]:7000") == "from $(full6 "$(pod_of alice $node)")" ]] || fail "not translated, $node: $(reaches6 alice $node "[$untranslated6]:7000")"
	done
	lose_clients
	on ctl scancel "${jobs[alice]}" "${jobs[bob]}"
	poll 20 settled || fail "the jobs do not end"
	stop_site
	router sh -c "nft delete table ip6 afar; ip route del 10.200.1.0/29; ip route del 10.200.1.8/29; ip route del $(second 10.200.1.0)/125; ip route del $(second 10.200.1.8)/125"
	for port in $(ports); do router ip link set "$port" type bridge_slave isolated off; done
	for host in "${hosts[@]}"; do
		together "$host"
		on "$host" sh -c "ip addr del $(host6 "$host")/128 dev eth0; ip addr add $(host6 "$host")/64 dev eth0 nodad
			ip route replace default via $(host6 router); ip route del $(host6 router) dev eth0"
	done
	start_site
}

# ports prints the router's ends of the hosts' links.
ports() { router ip -o link show master br0 | sed 's/^[0-9]*: //; s/[@:].*//'; }

# begins6: pods of a running job have no second address until the site adds IPv6. The
# restarted berthd then gives them one.
begins6() {
	ipv6=''
	with_routes ''
	job alice
	[[ -z $(step alice n1 ip -o -6 addr show dev eth0) ]] || fail "an address without a range: $(step alice n1 ip -o -6 addr show dev eth0)"
	ipv6=with_second
	with_routes ''
	serve6 alice n2 7000
	poll 10 eval '[[ $(hears6 alice n1 "$(full6 "$(pod_of alice n2)"):7000") == from* ]]' || fail "a job that runs has no IPv6: $(root alice n1 ip -6 addr)"
}
