# shellcheck shell=bash
# Faults around running jobs.

# talks NODE NODE: alice's pods there reach each other at port 7000. The answer is
# kept for failures.
talks() {
	heard=$(step alice "$1" socat -u "TCP:$(pod_file alice "$2"):7000,connect-timeout=5" - 2>&1)
	[[ $heard == "from $(pod_file alice "$1")" ]]
}

# pod_file USER NODE is like pod_of, but reads the node's own record, without etcd.
pod_file() {
	on "$2" cat "/run/berthd/pods/${jobs[$1]}" | grep -o "{\"node\":\"$2\"[^}]*}" | sed 's/.*"address":"//; s/".*//'
}

stop_etcd() { on ctl sh -c 'kill -9 $(pgrep -f "berthd etcd")'; wait "${daemons[etcd]}" 2>/dev/null; }
start_etcd() { start etcd ctl etcd --host "$(address ctl)" --data /run/etcd; }

# etcd_away: without etcd running jobs continue, their new steps start, a job may end,
# and a new one reports what is missing. Afterwards everything recovers.
etcd_away() {
	local seen
	job alice
	serve alice n2 7000
	stop_etcd
	talks n1 n2 || fail "pods do not reach each other without etcd: $heard"
	seen=$(as bob login srun -N1 -n1 --mem=100 hostname 2>&1) && fail "a job has started: $seen"
	[[ $seen == *"this job has no network"*etcd* ]] || fail "bob reads: $seen"
	# Nobody gets a first session either; a user's job on the node has its pod.
	seen=$(as bob ctl ssh login true 2>&1) && fail "a session has begun: $seen"
	[[ $seen == *"no session on this host"*etcd* ]] || fail "bob reads at login: $seen"
	seen=$(as alice ctl ssh n1 ip -o -4 addr show dev eth0 2>&1)
	[[ $seen == *"$(pod_of alice n1)/"* ]] || fail "alice's session beside her job: $seen"
	on ctl scancel "${jobs[alice]}"
	poll 20 gone alice || fail "the job does not end"
	start_etcd
	poll 20 registered || fail "etcd does not come back"
	poll 30 runs bob || fail "no job starts afterwards"
}
gone() { local node; for node in n1 n2; do ! on $node test -e "/run/berthd/net/${jobs[$1]}" || return 1; done; }
runs() { [[ $(as "$1" login srun -N2 -n2 --mem=100 hostname 2>/dev/null | sort) == $'n1\nn2' ]]; }

# etcd_stopped: etcd accepts connections and does not answer. berthd gives up before
# the plugin does, so the user reads what is missing.
etcd_stopped() {
	local seen
	signal_etcd STOP || fail "etcd does not stop"
	seen=$(as bob login srun -N1 -n1 --mem=100 hostname 2>&1) && fail "a job has started: $seen"
	signal_etcd CONT
	# The process that started it is stopped too, and would not pass on a signal to
	# end.
	kill -CONT "${daemons[etcd]}"
	[[ $seen == *"this job has no network"*"etcd has not answered"* ]] || fail "bob reads: $seen"
	poll 30 registered || fail "etcd does not come back"
	poll 30 runs bob || fail "no job starts afterwards"
}
signal_etcd() { on ctl sh -c "kill -$1 \$(pgrep -f '^/srv/site/berthd etcd')"; }

# etcd_lost: etcd forgets everything. The nodes restore their allocations before a new
# job could get the same addresses.
etcd_lost() {
	local before
	job alice
	serve alice n2 7000
	before=$(pod_of alice n1)
	stop_etcd
	on ctl rm -r /run/etcd
	start_etcd
	poll 30 restored "$before" || fail "etcd has $(pod_of alice n1), want $before"
	talks n1 n2 || fail "pods do not reach each other afterwards: $heard"
	poll 20 registered || fail "nodes are not registered again"
	job bob
	[[ $(pod_of bob n1) != "$before" && $(network_of bob) != "$(network_of alice)" ]] || fail "bob has alice's address or network"
}
restored() { [[ $(pod_of alice n1) == "$1" ]]; }

# upgraded: berthd of an earlier commit (SITE_FORMER, or five changes ago) is replaced
# by this one, with a job and a session running. They continue, and everything new
# works.
upgraded() {
	local before
	build_former
	stop_site
	start_former
	job alice
	serve alice n2 7000
	stay bob
	before=$(pod_of alice n1)
	stop_site
	start_site --config /run/changed.yaml
	talks n1 n2 || fail "pods do not reach each other afterwards: $heard"
	[[ $(step alice n1 ip -o -4 addr show dev eth0) == *" $before/"* && $(pod_of alice n1) == "$before" ]] || fail "a new step has $(step alice n1 ip -o -4 addr show dev eth0), want $before"
	[[ $(step alice n1 getent hosts pod1) == "$(pod_of alice n2) "* ]] || fail "names: $(step alice n1 getent hosts pod1)"
	[[ $(from_outside bob login 'ps -e -o args= | grep -c "[s]leep 300"') == 1 ]] || fail "a new session of bob's is not where the former one is"
	job bob
	serve bob n2 7000
	[[ $(step bob n1 socat -u "TCP:$(pod_of bob n2):7000,connect-timeout=5" -) == "from $(pod_of bob n1)" ]] || fail "pods of a new job do not reach each other"
	lose_clients
	on ctl scancel "${jobs[alice]}" "${jobs[bob]}"
	poll 20 settled || fail "left: $(etcdctl get --prefix /berth/site/1/networks/)"
	stop_site
	start_site
}

# build_former builds berthd of an earlier commit.
build_former() {
	local former=${SITE_FORMER:-$(git rev-list -n 1 --skip 5 HEAD -- cmd/berthd internal/site/siteconf internal/site/berthd internal/site/vxlan)}
	git worktree add -q --detach "$out/former" "$former" && (cd "$out/former" && go build -o "$stage/former/berthd" ./cmd/berthd) && chmod -R a+rX "$stage/former" || fail "build the former berthd, of the commit '$former'"
	git worktree remove --force "$out/former"
	say "berthd of $(git log -1 --format='%h, %cs' "$former")"
}

# start_former starts it on all hosts.
start_former() {
	local host
	# The default port of earlier versions was 4789. No other nft was available.
	configuration | sed '/^nft: /d; s/^cluster: .*/&\ntunnel: {port: 4789}/' >"$out/changed.yaml"
	for host in "${hosts[@]}"; do
		on "$host" sh -c 'cat >/run/changed.yaml' <"$out/changed.yaml"
		"$bed" run "$host" /srv/site/former/berthd run --config /run/changed.yaml >>"$out/$host.log" 2>&1 </dev/null &
		daemons[$host]=$!
	done
	for host in "${hosts[@]}"; do poll 30 answers "$host" || fail "the former berthd does not start on $host"; done
}

# downgraded: this berthd is replaced by that of an earlier commit, with jobs and a session running,
# and the other way round. They continue, and new jobs start with either.
downgraded() {
	local before
	build_former
	stop_site
	configuration | sed '/^nft: /d; s/^cluster: .*/&\ntunnel: {port: 4789}/' >"$out/changed.yaml"
	for host in "${hosts[@]}"; do on "$host" sh -c 'cat >/run/changed.yaml' <"$out/changed.yaml"; done
	start_site --config /run/changed.yaml
	job alice
	serve alice n2 7000
	stay bob
	before=$(pod_of alice n1)
	stop_site
	start_former
	talks n1 n2 || fail "pods do not reach each other with the former berthd: $heard"
	[[ $(step alice n1 ip -o -4 addr show dev eth0) == *" $before/"* && $(pod_of alice n1) == "$before" ]] || fail "a new step has $(step alice n1 ip -o -4 addr show dev eth0), want $before"
	[[ $(step alice n1 getent hosts pod1) == "$(pod_of alice n2) "* ]] || fail "names: $(step alice n1 getent hosts pod1)"
	[[ $(from_outside bob login 'ps -e -o args= | grep -c "[s]leep 300"') == 1 ]] || fail "a new session of bob's is not where the former one is"
	runs carol || fail "no job starts with the former berthd"
	job bob
	stop_site
	start_site --config /run/changed.yaml
	talks n1 n2 || fail "pods do not reach each other afterwards: $heard"
	serve bob n2 7000
	[[ $(step bob n1 socat -u "TCP:$(pod_of bob n2):7000,connect-timeout=5" -) == "from $(pod_of bob n1)" ]] || fail "pods of the former berthd's job do not reach each other"
	lose_clients
	on ctl scancel "${jobs[alice]}" "${jobs[bob]}"
	poll 20 settled || fail "left: $(etcdctl get --prefix /berth/site/1/networks/)"
	stop_site
	start_site
}

# lost_epilog: a node loses power under a job, so no epilog reports that the job has
# left it. The controller knows.
lost_epilog() {
	job alice
	kill -9 "${daemons[n2]}"
	on n2 sh -c 'kill -9 $(pgrep -x berthd)'
	wait "${daemons[n2]}" 2>/dev/null
	on ctl scancel "${jobs[alice]}"
	poll 30 forgotten || fail "etcd still has $(etcdctl get --prefix /berth/site/1/networks/)"
	start n2 n2 run
	poll 20 answers n2 || fail "berthd does not come back"
	poll 20 gone alice || fail "n2 keeps the pod of a job that is over"
}
forgotten() { [[ -z $(etcdctl get --prefix /berth/site/1/networks/) ]]; }

# hostile_questions: what users write to berthd's socket changes nothing, and does not
# block other users.
hostile_questions() {
	local seen i
	job alice
	# shellcheck disable=SC2016
	seen=$(as bob n1 sh -c '
		for question in "release\njob '"${jobs[alice]}"'" "attach\njob '"${jobs[alice]}"'\nuid 0" "attach\njob 99\nuid '"$(settings id_of alice)"'" "serve\njob '"${jobs[alice]}"'\nnames web"; do
			printf "berthd/1 $question\n\n" | socat - UNIX:/run/berthd/berthd.sock; done
		head -c 200000 /dev/urandom | socat - UNIX:/run/berthd/berthd.sock 2>/dev/null
		printf "status\n\n" | socat - UNIX:/run/berthd/berthd.sock')
	[[ $(grep -c "is for root" <<<"$seen") -ge 3 && $seen == *"you have no such job"* ]] || fail "bob is told: $seen"
	for ((i = 0; i < 40; i++)); do
		as bob n1 socat -u UNIX:/run/berthd/berthd.sock - >/dev/null 2>&1 &
		helpers+=($!)
	done
	seen=$(step alice n1 ip -o -4 addr show dev eth0)
	[[ $seen == *"$(pod_of alice n1)/"* ]] || fail "a step of alice: $seen"
	# Other users are not blocked either. Each connection of bob's is closed after
	# three seconds, and he reconnects.
	# shellcheck disable=SC2016
	as bob n1 sh -c 'for round in 1 2 3; do
			for i in $(seq 40); do socat -u UNIX:/run/berthd/berthd.sock - >/dev/null 2>&1 & done
			wait
		done' &
	helpers+=($!)
	poll 10 crowded || fail "bob has $(on n1 grep -c /run/berthd/berthd.sock /proc/net/unix) connections"
	seen=$(as alice n1 sh -c 'printf "berthd/1 serve\njob '"${jobs[alice]}"'\nnames web\n\n" | socat -t 10 - UNIX:/run/berthd/berthd.sock' 2>&1)
	[[ $seen == *domain*.alice.bed* ]] || fail "beside bob's connections a run of alice's is told: $seen"
	[[ $(as bob n1 cat /run/berthd/pods/* /run/berthd/net/* 2>&1) == *denied* ]] || fail "bob reads what berthd keeps"
}

# crowded: berthd serves its maximum of one user's connections, beside the listening
# socket.
crowded() { (($(on n1 grep -c /run/berthd/berthd.sock /proc/net/unix) > 16)); }

# etcd_closed: the ports of etcd answer only programs with a certificate of the site.
etcd_closed() {
	local at where port
	as bob n1 sh -c 'openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=n1 -keyout own.key -out own.crt' >/dev/null 2>&1 ||
		fail "bob makes no certificate"
	for at in "n1 $(address ctl) 2379" "ctl 127.0.0.1 2381"; do
		read -r at where port <<<"$at"
		[[ $(on "$at" curl -sk -o /dev/null -w '%{http_code}' --cert /etc/berth/node.crt --key /etc/berth/node.key "https://$where:$port/") != 000 ]] ||
			fail "port $port does not answer the site's certificate"
		[[ $(as bob "$at" curl -sk -o /dev/null -w '%{http_code}' "https://$where:$port/") == 000 ]] || fail "port $port answers without a certificate"
		[[ $(as bob "$at" curl -sk -o /dev/null -w '%{http_code}' --cert own.crt --key own.key "https://$where:$port/") == 000 ]] ||
			fail "port $port answers a certificate of bob's"
	done
	as bob n1 cat /etc/berth/node.key >/dev/null 2>&1 && fail "bob reads the key of the nodes"
	return 0
}

# roles: each host has its own certificate and role in etcd. Root of a node cannot throw out
# another; the administrator can, and a node that was thrown out gets no job's network.
roles() {
	local host seen dir=/run/berth-keys settings=/run/roles.yaml
	on ctl /srv/site/berthd keys make --dir $dir "${hosts[@]}" || fail "make keys"
	stop_site
	stop_etcd
	configuration | sed -E "s,/etc/berth/(ca.crt|node.crt|node.key),/run/own/\\1," >"$out/roles.yaml"
	for host in "${hosts[@]}"; do
		on "$host" sh -c "cat >$settings; mkdir -p /run/own" <"$out/roles.yaml"
		on ctl tar -c -C $dir ca.crt -C nodes/"$host" node.crt node.key | on "$host" tar -x -C /run/own || fail "copy keys to $host"
	done
	start etcd ctl etcd --config $settings --host "$(address ctl)" --data /run/etcd --cert "$dir/etcd/$(address ctl)/etcd.crt" --key "$dir/etcd/$(address ctl)/etcd.key"
	start_site --config $settings
	poll 30 on ctl /srv/site/berthd keys grant --dir $dir --config $settings "${hosts[@]}" || fail "grant"
	on ctl /srv/site/berthd keys enforce --dir $dir --config $settings || fail "enforce"
	poll 60 runs bob || fail "no job starts with roles"
	job alice
	serve alice n2 7000
	talks n1 n2 || fail "pods do not reach each other: $heard"
	# Root of n1 takes its own certificate for the administrator's, and the site's former one.
	on n1 sh -c 'cd /run/own && cp node.crt root.crt && cp node.key root.key'
	for host in expel grant; do
		seen=$(both n1 /srv/site/berthd keys $host --dir /run/own --config $settings n2) && fail "root of n1 may $host n2"
		[[ $seen == *"permission denied"* ]] || fail "root of n1 reads: $seen"
	done
	seen=$(both n1 /srv/site/berthd keys relax --dir /run/own --config $settings) && fail "root of n1 turns off roles"
	on ctl /srv/site/berthd keys expel --dir $dir --config $settings n2 || fail "expel n2"
	seen=$(as bob login srun -Q -N1 -n1 -w n2 --mem=100 hostname 2>&1) && fail "a job has started on n2, which was thrown out: $seen"
	[[ $seen == *"etcd refuses the certificate of this host"* ]] || fail "bob reads: $seen"
	[[ $(as bob login srun -Q -N1 -n1 -w n1 --mem=100 hostname 2>&1) == n1 ]] || fail "no job starts on n1"
	# The running job goes on, and n2 comes back.
	talks n1 n2 || fail "pods do not reach each other any more: $heard"
	on ctl /srv/site/berthd keys grant --dir $dir --config $settings n2 || fail "grant n2 again"
	poll 60 runs bob || fail "no job starts on n2, which is back"
	on ctl /srv/site/berthd keys relax --dir $dir --config $settings || fail "relax"
	on ctl scancel "${jobs[alice]}"
	poll 20 gone alice || fail "the job does not end"
	stop_site
	stop_etcd
	for host in "${hosts[@]}"; do on "$host" rm -r /run/own $settings; done
	on ctl rm -r $dir
	start_etcd
	start_site
	poll 20 registered || fail "nodes are not registered again"
}

# exhausted: without a free address a job reports that, and runs once there is one.
exhausted() {
	local seen id
	id=$(as alice login sbatch --parsable -N2 -n2 --mem=100 --array=1-7 -o /dev/null --wrap 'sleep 300')
	poll 30 all_taken || fail "not all addresses are taken: $(etcdctl get --prefix /berth/site/1/networks/ | wc -l) jobs"
	seen=$(as bob login srun -N2 -n2 --mem=100 hostname 2>&1) && fail "it ran: $seen"
	[[ $seen == *"all addresses of"*"are taken"* ]] || fail "bob reads: $seen"
	as alice login scancel "$id"
	poll 40 runs bob || fail "no job starts afterwards"
}
all_taken() { [[ $(etcdctl get --prefix /berth/site/1/networks/ | grep -c job) -ge 6 ]]; }
