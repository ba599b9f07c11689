# shellcheck shell=bash
# The site's own CNI plugins connect pods instead of tunnels.

# with_plugins LIST restarts berthd on all hosts with this list. RANGE in it stands
# for each host's own range of addresses. The site has routes between them.
with_plugins() {
	local host other number=0
	stop_site
	configuration | sed '/^routes-on:/d; /^gateways:/,$d' >"$out/cni.yaml"
	printf 'cni: {list: /run/site.conflist, plugins: [/run/cni, /srv/site/cni], state: /run/cni/state}\n' >>"$out/cni.yaml"
	for host in "${hosts[@]}"; do
		on "$host" sh -c 'mkdir -p /run/cni; cat >/run/cni.yaml' <"$out/cni.yaml"
		sed "s|RANGE|${pods%.*}.$number/30|" <<<"$1" | on "$host" sh -c 'cat >/run/site.conflist'
		for other in "${hosts[@]}"; do
			[[ $other == "$host" ]] || on "$other" ip route add "${pods%.*}.$number/30" via "$(address "$host")"
		done
		on "$host" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
		number=$((number + 4))
	done
	start_site --config /run/cni.yaml
}

without_plugins() {
	local host
	poll 20 forgotten || fail "the jobs do not end"
	stop_site
	for host in "${hosts[@]}"; do
		on "$host" sh -c "ip route | grep '^${pods%.*}' | cut -d' ' -f1 | xargs -n1 ip route del; ip link del site0 2>/dev/null
			echo 0 >/proc/sys/net/ipv4/ip_forward; rm -r /run/cni /run/cni.yaml /run/site.conflist"
	done
	start_site
}

# given_out NODE prints the addresses that host-local has assigned there.
given_out() { on "$1" sh -c 'ls /run/cni/networks/site 2>/dev/null | grep "^[0-9]"'; }

# at USER NODE prints the address that etcd holds for the user's job there.
at() { etcdctl get --prefix /berth/site/1/networks/"$(settings id_of "$1")"/at/"${jobs[$1]}"/ | sed -n "$([[ $2 == n1 ]] && echo 1 || echo 2)p"; }
told() { [[ -n $(at "$1" n1) && -n $(at "$1" n2) ]]; }

bridged='{"cniVersion":"1.0.0","name":"site","plugins":[{"type":"bridge","bridge":"site0","isGateway":true,"ipam":{"type":"host-local","dataDir":"/run/cni/networks","ranges":[[{"subnet":"RANGE"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}'
routed='{"cniVersion":"1.0.0","name":"site","plugins":[{"type":"ptp","ipam":{"type":"host-local","dataDir":"/run/cni/networks","ranges":[[{"subnet":"RANGE"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}'

# cni: plugins of the CNI project connect a job's pods by a bridge on each node. Etcd
# and the name servers know the addresses. A later daemon also asks the plugins to
# undo their work.
cni() {
	local node seen first
	with_plugins "$bridged"
	job alice -J wired
	poll 10 told alice || fail "etcd does not know the addresses: $(etcdctl get --prefix /berth/site/1/networks/)"
	for node in n1 n2; do
		seen=$(step alice $node sh -c 'ip -o -4 addr show dev eth0 | sed "s/.*inet //; s:/.*::"; ip -o link | grep -c .; ip -o link show lo up | grep -c .')
		[[ $seen == "$(at alice $node)"$'\n2\n1' && $(given_out $node) == "$(at alice $node)" ]] || fail "on $node: $seen, etcd has $(at alice $node), host-local $(given_out $node)"
	done
	serve alice n2 7000
	poll 10 wired || fail "pods do not talk by name: $(step alice n1 sh -c 'cat /etc/resolv.conf; getent hosts pod1.wired' 2>&1)"
	# A daemon that restarts keeps what works and repairs what does not.
	first=$(at alice n1)
	on n1 sh -c 'kill -9 $(pgrep -f "[b]erthd run")'
	wait "${daemons[n1]}" 2>/dev/null
	start n1 n1 run --config /run/cni.yaml
	poll 20 answers n1 || fail "berthd does not come back"
	wired || fail "pods do not talk after the daemon was killed"
	[[ $(at alice n1) == "$first" ]] || fail "the pod's address has changed"
	on n1 sh -c 'kill -9 $(pgrep -f "[b]erthd run")'
	wait "${daemons[n1]}" 2>/dev/null
	root alice n1 ip link del eth0
	start n1 n1 run --config /run/cni.yaml
	poll 20 answers n1 || fail "berthd does not come back"
	poll 20 wired || fail "an interface that is gone is not made again"
	[[ $(given_out n1) == "$(at alice n1)" ]] || fail "after that etcd has $(at alice n1), host-local $(given_out n1)"
	# Nobody reports that the job has left n2.
	on n2 sh -c 'kill -9 $(pgrep -f "[b]erthd run")'
	wait "${daemons[n2]}" 2>/dev/null
	on ctl scancel "${jobs[alice]}"
	poll 30 forgotten || fail "etcd still has $(etcdctl get --prefix /berth/site/1/networks/)"
	poll 20 eval '[[ -z $(given_out n1) ]]' || fail "left on n1: $(given_out n1)"
	[[ -n $(given_out n2) ]] || fail "n2 has given back an address without berthd"
	start n2 n2 run --config /run/cni.yaml
	poll 20 answers n2 || fail "berthd does not come back"
	poll 20 eval '[[ -z $(given_out n2) ]]' || fail "left on n2: $(given_out n2)"
	without_plugins
}
wired() { [[ $(step alice n1 socat -u TCP:pod1.wired:7000,connect-timeout=2 - 2>/dev/null) == "from $(at alice n1)" ]]; }

# cni_fails: the user reads the errors of plugins. Sessions have pods from plugins
# too. A plugin that hangs is killed before Slurm gives up.
cni_fails() {
	local seen
	with_plugins "$routed"
	# Each node has two addresses for pods, one of them for the node itself.
	job alice
	seen=$(as bob login srun -Q -N1 -n1 -w n1 --mem=100 hostname 2>&1) && fail "it ran: $seen"
	[[ $seen == *"this job has no network"*"by CNI (list site)"*"ptp"*"no IP addresses available"* ]] || fail "bob reads: $seen"
	on ctl scancel "${jobs[alice]}"
	poll 20 gone alice || fail "the job does not end"
	seen=$(from_outside alice login 'ip -o -4 addr show dev eth0' 2>&1)
	[[ $seen == *"inet ${pods%.*}.6/"* ]] || fail "a session: $seen"
	poll 20 forgotten || fail "left: $(etcdctl get --prefix /berth/site/1/networks/)"
	poll 20 eval '[[ -z $(given_out login) ]]' || fail "left on login: $(given_out login)"
	on n1 sh -c 'cat >/run/cni/ptp; chmod +x /run/cni/ptp' <<-'END'
		#!/bin/sh
		[ "$CNI_COMMAND" = ADD ] || exec /srv/site/cni/ptp
		sleep 1000
	END
	seen=$(as bob login srun -Q -N1 -n1 -w n1 --mem=100 hostname 2>&1) && fail "it ran: $seen"
	[[ $seen == *"this job has no network"*"have not ended in time"* ]] || fail "of a plugin that hangs bob reads: $seen"
	on n1 sed -i 's/"ptp"/"absent"/' /run/site.conflist
	seen=$(both n1 /srv/site/berthd doctor --config /run/cni.yaml)
	[[ $seen == *"WRONG CNI plugins are there"*absent*"cni.plugins"* ]] || fail "the doctor of a plugin that is not there: $seen"
	without_plugins
}
