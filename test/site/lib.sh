# shellcheck shell=bash
# A bed with the site network installed: etcd on ctl, berthd on every host, the SPANK
# plugin.

fails=0
# Room for six jobs on both nodes.
pods=10.200.0.0/28
# The subnets of nodes if pods are routed, or none with tunnels.
subnets=''
# The command that adds IPv6 to the configuration, or none.
ipv6=''
# A short interval between polls of the controller, so that cases see their effects
# soon.
collect=1s

say() { echo "    $*"; }

# fail MESSAGE... marks the case as failed. It prints only the first failure of a case.
fail() {
	[[ $failed == yes ]] || say "FAILED: $*"
	failed=yes
}

# poll SECONDS CMD... waits until CMD succeeds; it fails at the deadline.
poll() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@"; do
		((SECONDS < deadline)) || return 1
		sleep 0.05
	done
}

# as USER HOST CMD... runs a command for at most $limit seconds.
as() { timeout -k 1 "${limit:-90}" "$bed" run --user "$@"; }
on() { timeout -k 1 90 "$bed" run "$@"; }
both() { on "$@" 2>&1; }

settings() { (. test/bed/lib/settings.sh && load_settings && "$@"); }
address() { settings address_of "$1"; }

# install_site installs what an administrator installs. The bed's /etc is a folder
# here.
install_site() {
	local etc name
	etc=$(settings eval 'echo $state')/etc
	mkdir -p "$etc/berth"
	keys "$etc/berth"
	configuration >"$etc/berth/site.yaml"
	start etcd ctl etcd --host "$(address ctl)" --data /run/etcd
	for name in "${hosts[@]}"; do start "$name" "$name" run; done
	for name in "${hosts[@]}"; do
		poll 20 answers "$name" || {
			tail -n 5 "$out/$name.log" "$out/etcd.log"
			return 1
		}
	done
	poll 20 registered || { tail -n 5 "$out"/*.log; return 1; }
	install_sshd "$etc/berth"
}

# install_sshd DIR installs a real sshd on login hosts and nodes, with the settings of
# docs/site-network.md. Its clients are on ctl.
install_sshd() {
	local user host
	ssh-keygen -q -t ed25519 -N '' -f "$1/host"
	cat >"$1/sshd_config" <<-'END'
		HostKey /etc/berth/host
		PidFile none
		LogLevel VERBOSE
		UsePAM yes
		X11Forwarding yes
		Subsystem sftp /usr/lib/openssh/sftp-server
		Match User *,!root
		    ForceCommand /srv/site/berth-session
	END
	mkdir -p "$1/../pam.d"
	printf '%s\n' 'auth required pam_deny.so' 'account required pam_permit.so' 'session required /srv/site/pam_berth.so' >"$1/../pam.d/sshd"
	# There are no passwords; the machine may have locked a user of that name.
	(umask 077 && printf '%s:*:19000::::::\n' root alice bob >"$1/../shadow")
	for user in alice bob; do
		as $user login sh -c 'mkdir -m 700 .ssh && ssh-keygen -q -t ed25519 -N "" -f .ssh/id_ed25519 && cp .ssh/id_ed25519.pub .ssh/authorized_keys
			printf "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\nBatchMode yes\n" >.ssh/config' || return 1
	done
	for host in login n1 n2; do start_sshd $host; done
	for host in login n1 n2; do poll 10 has_sshd $host || return 1; done
}

start_sshd() { # HOST
	on "$1" mkdir -p /run/sshd
	"$bed" run "$1" /usr/sbin/sshd -D -e -f /etc/berth/sshd_config >>"$out/sshd-$1.log" 2>&1 </dev/null &
	daemons[sshd-$1]=$!
}
has_sshd() { on "$1" sh -c 'ss -Hltn "sport = :22" | grep -q .'; }

configuration() { plain_configuration | "${ipv6:-cat}"; }

plain_configuration() {
	cat <<-END
		cluster: bed
		pods: $pods
		hosts: $(address ctl | sed 's/[0-9]*$/0/')/24
		etcd:
		  endpoints: ["https://$(address ctl):2379"]
		  ca: /etc/berth/ca.crt
		  cert: /etc/berth/node.crt
		  key: /etc/berth/node.key
		pod: /srv/site/berth-pod
		nft: /srv/berth/libexec/berth/nft
		routes-on: [ctl, login]
		login-on: [login]
		lease: 10s
		metrics: 127.0.0.1:9418
		opt-out: true
		groups: {lab: [carol, dave]}
		collect: $collect
		${subnets:+routed: $subnets}
		dns:
		  program: /srv/site/berth-dns
		  search: [outside.test]
		gateways:
		  on: [ctl, login]
		  networks:
		  - addresses: [0.0.0.0/0]
		    nat: true
		  - addresses: [$untranslated/32]
		policy:
		  egress:
		  - addresses: [$(address ctl | sed 's/[0-9]*$/0/')/24]
		  - addresses: [$translated/32, $untranslated/32]
		    ports: [tcp/7000]
		  ingress:
		  - addresses: [$(address ctl)/32, $(address login)/32]
		    ports: [tcp/1024-65535]
		  users:
		    alice:
		      ingress:
		      - addresses: [$untranslated/32]
		        ports: [tcp/8000]
		    bob:
		      egress:
		      - addresses: [$translated/32]
		        ports: [tcp/7]
	END
}

keys() { # DIR
	local name=$1/node
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=site \
		-keyout "$out/ca.key" -out "$1/ca.crt" 2>/dev/null &&
		openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=node -keyout "$name.key" \
			-out "$out/node.csr" 2>/dev/null &&
		openssl x509 -req -in "$out/node.csr" -CA "$1/ca.crt" -CAkey "$out/ca.key" -CAcreateserial -days 2 \
			-extfile <(echo "subjectAltName=IP:127.0.0.1,IP:$(address ctl),IP:$(address login),IP:$(address n1)"; echo extendedKeyUsage=serverAuth,clientAuth) \
			-out "$name.crt" 2>/dev/null &&
		chmod 600 "$name.key"
}

# start NAME HOST ARGS... starts a berthd, or another $berthd, that logs to
# $out/NAME.log.
start() {
	local name=$1 host=$2
	shift 2
	"$bed" run "$host" "${berthd:-/srv/site/berthd}" "$@" >>"$out/$name.log" 2>&1 </dev/null &
	daemons[$name]=$!
}

answers() { on "$1" /srv/site/berthd status >/dev/null 2>&1; }

# registered reports whether etcd knows each node.
registered() {
	local name
	for name in "${hosts[@]}"; do
		etcdctl get "/berth/site/1/nodes/$name" | grep -q . || return 1
	done
}

# etcdctl implements the one form that is needed, get KEY or get --prefix KEY, by
# etcd's own JSON over HTTP.
etcdctl() {
	local key=${!#} end=''
	if [[ $2 == --prefix ]]; then end=$(printf '%s' "${key%/}0" | base64 -w0); fi
	on ctl curl -sS --cacert /etc/berth/ca.crt --cert /etc/berth/node.crt --key /etc/berth/node.key \
		https://127.0.0.1:2381/v3/kv/range \
		-d "{\"key\":\"$(printf '%s' "$key" | base64 -w0)\"${end:+,\"range_end\":\"$end\"}}" |
		grep -o '"value":"[^"]*"' | cut -d'"' -f4 | while read -r value; do base64 -d <<<"$value"; echo; done
}

# nothing_left checks that berth has left no link, route, rule, address, process or
# file on a node, and no address in etcd.
nothing_left() {
	local name left
	poll 20 settled || fail "left in etcd: $(etcdctl get --prefix /berth/site/1/networks/)"
	for name in "${with_pods[@]}"; do
		left=$(left_on "$name")
		[[ -z $left ]] || fail "left on $name: $left"
	done
	poll 10 clean || fail "left behind: $("$bed" check)"
}

clean() { "$bed" check >/dev/null; }

settled() {
	local name
	[[ -z $(etcdctl get --prefix /berth/site/1/networks/) ]] || return 1
	for name in "${with_pods[@]}"; do [[ -z $(left_on "$name") ]] || return 1; done
}

# With IPv6, the rules that keep users of a host from a pod's address stay even while there
# are no pods, so left_on does not count them.
left_on() {
	local rules='{ nft list tables || echo "nft has ended with $?"; } | grep -E "berth|ended"'
	[[ -z $ipv6 ]] || rules='nft list tables | grep "bridge berth"; nft list table inet berth 2>/dev/null | grep -E "set |chain |hook |jump " | grep -vE "chain output|hook output"'
	on "$1" sh -c "$rules"'
		ip -o link | grep -oE "berth[btp][0-9a-f]+"
		ip route show table all | grep -E "proto 98|10\.200\."
		ip rule | grep "10\.200\."
		ip addr | grep "10\.200\."
		ip -6 route show table all | grep "proto 98"
		ip -6 rule | grep "lookup [1-9]"
		ip -6 addr | grep -E "fe80::6265:7274:|fd62:6974:6573:"
		ls /run/berthd/net /run/berthd/pid /run/berthd/pods /run/berthd/names /run/berthd/resolv /run/berthd/sessions /run/berthd/served /run/berthd/declined 2>/dev/null | grep -v :
		pgrep -lx berth-dns
		grep -s 1 /proc/sys/net/ipv4/conf/eth0/forwarding /proc/sys/net/ipv6/conf/all/forwarding
		grep -s 2 /proc/sys/net/ipv6/conf/eth0/accept_ra'
}

end_case() {
	if [[ ${#helpers[@]} -gt 0 ]]; then
		kill "${helpers[@]}"
		wait "${helpers[@]}"
	fi 2>/dev/null
	helpers=()
	on ctl sh -c 'squeue -h -o %A | xargs -r scancel'
	lose_clients
	nothing_left
}

case_() {
	local began=$SECONDS
	failed=no helpers=()
	declare -F "$1" >/dev/null || fail "there is no such case"
	"$1"
	end_case
	if [[ $failed == yes ]]; then
		fails=$((fails + 1))
		keep "$1" FAILED $((SECONDS - began))
		echo "FAIL $1 ($((SECONDS - began)) s)"
		(grep -h -A12 panic "$out"/*.log; tail -n 6 "$out"/*.log) | sed 's/^/      /'
	else
		keep "$1" ok $((SECONDS - began))
		echo "ok   $1 ($((SECONDS - began)) s)"
	fi
}
