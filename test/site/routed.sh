# shellcheck shell=bash
# Pods that are reached by plain routes; each node has its own subnet.

# Room for six jobs on each node.
a_subnet_each='{"n[1-2]": 10.200.1.0/29, login: 10.200.2.0/29}'
# Cases that work with tunnels and without. The cases that restart daemons use the
# current configuration. SITE_ROUTED="routed_afar" runs only the cases it lists.
without_tunnels=(no_nat hosts_reached slurm_inside users_apart nobody_spoofs daemon_killed names names_apart groups sessions
	gateways flows_counted strict_reverse_path mpi mpirun kubernetes exhausted etcd_away etcd_lost lost_epilog operated)

# with_routes SUBNETS restarts berthd on all hosts, with pods routed by these subnets,
# or with tunnels. No job may run.
with_routes() {
	: "${pods_by_tunnels:=$pods}"
	subnets=$1 pods=$pods_by_tunnels
	[[ -z $subnets ]] || pods=10.200.0.0/22
	stop_site
	configuration >"$(settings eval 'echo $state')/etc/berth/site.yaml"
	start_site
}

# routed: a site without tunnels. Pods have addresses of their node's subnet and the
# hosts' MTU. While a node has pods, it has a route to the subnet of each node whose
# pods they talk to. Everything else is as with tunnels.
routed() {
	local part told=no
	with_routes "$a_subnet_each"
	job alice
	[[ $(pod_of alice n1) =~ ^10\.200\.1\.[1-6]$ && $(pod_of alice n2) =~ ^10\.200\.1\.(9|1[0-4])$ ]] || fail "addresses: $(pod_of alice n1) $(pod_of alice n2)"
	looks_routed n1 10.200.1.0/29 n2 10.200.1.8/29
	looks_routed n2 10.200.1.8/29 n1 10.200.1.0/29
	poll 10 login_leads || fail "routes of login: $(on login ip route)"
	part_ends "what is there, without tunnels"
	# shellcheck disable=SC2086
	for part in ${SITE_ROUTED:-"${without_tunnels[@]}" routed_mended routed_afar}; do
		[[ $failed == yes ]] || "$part"
		part_ends "$part, without tunnels"
	done
	with_routes ''
}

part_ends() { # NAME
	end_case
	[[ $failed == no || $told == yes ]] || { say "that was $1"; told=yes; }
}

login_leads() {
	[[ $(on login ip route | grep 'proto 98' | awk '{ print $1, $3 }' | sort) == "10.200.1.0/29 $(address n1)"$'\n'"10.200.1.8/29 $(address n2)" ]]
}

looks_routed() { # NODE SUBNET OTHER SUBNET
	local seen
	# A pod is recorded before it has its routes.
	poll 10 leads "$@" || fail "routes of $1: $(on "$1" ip route)"
	seen=$(on "$1" ip -o link | grep -oE 'berth[bt][0-9a-f]+')
	[[ -z $seen ]] || fail "bridges and tunnels on $1: $seen"
	[[ $(step alice "$1" cat /sys/class/net/eth0/mtu) == "$(on "$1" cat /sys/class/net/eth0/mtu)" ]] || fail "MTU on $1: $(step alice "$1" cat /sys/class/net/eth0/mtu)"
}

leads() { # NODE SUBNET OTHER SUBNET
	local seen
	seen=$(on "$1" ip route)
	[[ $seen == *"unreachable $2 "* && $seen == *"$4 via $(address "$3") dev eth0 "* ]]
}

# routed_mended: after berthd was killed and restarted, routes and rules that somebody
# removed are back, and unneeded ones are not.
routed_mended() {
	job alice
	serve alice n2 7000
	on n1 sh -c 'kill -9 $(pgrep -f "[b]erthd run"); ip route del 10.200.1.8/29; nft flush table inet berth'
	wait "${daemons[n1]}" 2>/dev/null
	on n1 ip route add 10.200.1.16/29 via "$(address login)" proto 98
	root alice n1 ip route del default
	! talks n1 n2 || fail "pods talk without a route"
	start n1 n1 run
	poll 20 answers n1 || fail "berthd does not come back"
	poll 10 talks n1 n2 || fail "pods do not talk: $(on n1 ip route) $(root alice n1 ip route): $heard"
	looks_routed n1 10.200.1.0/29 n2 10.200.1.8/29
	[[ $(on n1 ip route) != *10.200.1.16* ]] || fail "a route is left that leads to nobody"
	root alice n1 ip link del eth0
	on n1 sh -c 'kill -9 $(pgrep -f "[b]erthd run")'
	wait "${daemons[n1]}" 2>/dev/null
	start n1 n1 run
	poll 20 answers n1 || fail "berthd does not come back"
	poll 10 talks n1 n2 || fail "an interface that is gone is not made again: $heard"
}

# routed_afar: no host is on the link of another. The site's routers know the subnets,
# and berthd logs that they must.
routed_afar() {
	local host
	stop_site
	router sh -c "echo 0 >/proc/sys/net/ipv4/conf/all/send_redirects; echo 0 >/proc/sys/net/ipv4/conf/br0/send_redirects
		ip route replace 10.200.1.0/29 via $(address n1); ip route replace 10.200.1.8/29 via $(address n2)"
	for host in "${hosts[@]}"; do alone "$host"; done
	start_site
	job alice
	job bob
	serve alice n2 7000
	talks n1 n2 || fail "pods do not talk over a router: $(on n1 ip route): $heard"
	! step bob n1 socat -u "TCP:$(pod_of alice n2):7000,connect-timeout=2" - 2>/dev/null | grep -q from || fail "bob reaches alice over a router"
	[[ $(on n1 ip route) != *"10.200.1.8/29 via"* ]] || fail "a route to a host that is not on the link: $(on n1 ip route)"
	grep -q "site's routers have to lead its subnet to it.*subnet=10.200.1.8/29 node=$(address n2)" "$out/n1.log" || fail "berthd does not say that routers have to know the subnet: $(tail -n 3 "$out/n1.log")"
	# The login host is a gateway and reached by a tunnel.
	stay alice
	[[ $(on login nsenter --net="/run/berthd/net/login-$(settings id_of alice)-login" socat -u "TCP:$(pod_of alice n2):7000,connect-timeout=5" - 2>&1) == "from $(session_address alice)" ]] ||
		fail "a session does not reach a pod over a router: $(on login ip route)"
	lose_clients
	on ctl scancel "${jobs[alice]}" "${jobs[bob]}"
	poll 20 settled || fail "the jobs do not end"
	stop_site
	for host in "${hosts[@]}"; do together "$host"; done
	router sh -c "ip route del 10.200.1.0/29; ip route del 10.200.1.8/29"
	start_site
}
