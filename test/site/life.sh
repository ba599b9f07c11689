# shellcheck shell=bash
# Other things that Slurm and sites do with jobs and nodes.

# suspended: all of a suspended job stops, and continues when it is resumed.
suspended() {
	local id node
	id=$(as alice login sh -c 'rm -f ticks; sbatch --parsable -N2 -n2 --mem=100 -o /dev/null --wrap "srun --overlap sh -c \"while :; do echo tick >>ticks; sleep 0.1; done\""')
	jobs[alice]=$id
	poll 20 ticks || fail "the job does not run"
	serve alice n2 7000
	on ctl scontrol suspend "$id"
	poll 10 no_ticks || fail "the job goes on while it is suspended"
	# Addresses are released after two polls of the controller, one a second, without
	# the job.
	sleep 4
	for node in n1 n2; do
		on $node test -e "/run/berthd/net/$id" || fail "a suspended job loses its network on $node"
	done
	[[ $(pod_of alice n1) == 10.200.* ]] || fail "a suspended job loses its addresses: $(etcdctl get --prefix /berth/site/1/networks/)"
	on ctl scontrol resume "$id"
	poll 10 ticks || fail "the job does not go on"
	talks n1 n2 || fail "pods of a job that was suspended do not reach each other: $heard"
}
# ticks reports whether the job of suspended writes to the file ticks now.
ticks() {
	local before
	before=$(as alice login cat ticks 2>/dev/null | wc -l)
	sleep 0.5
	[[ $(as alice login cat ticks 2>/dev/null | wc -l) -gt $before ]]
}
no_ticks() { ! ticks; }

# requeued: a requeued job keeps its number. It loses its network, and gets a new one
# when it starts again.
requeued() {
	local before ended
	job alice
	before=$(generation)
	on ctl scontrol requeue "${jobs[alice]}"
	poll 20 gone alice || fail "the pods stay when the job is put back"
	# slurmd distinguishes two starts of a job only by the second. In the same second
	# it refuses the start ("already killed"), or omits the step that gives the other
	# node its network before any other step.
	ended=$(date +%s)
	poll 5 eval '(($(date +%s) > ended + 2))'
	# Otherwise Slurm waits two minutes.
	poll 30 on ctl scontrol update "jobid=${jobs[alice]}" StartTime=now 2>/dev/null || fail "the job does not come back into the queue"
	poll 60 everywhere alice || fail "no network for the second start: $(on ctl scontrol show job "${jobs[alice]}")"
	[[ $(generation) != "$before" ]] || fail "the allocation is the one from before"
	poll 20 eval 'step alice n2 true 2>/dev/null' || fail "no step of the second start"
	serve alice n2 7000
	talks n1 n2 || fail "pods of the second start do not talk: $heard"
}
# requeued_late: a job starts again after slurmd has forgotten it, after Slurm's own
# two minutes. It gets a new extern step and a new pod, and nothing of the former one.
requeued_late() {
	local before node seen
	job alice
	before=$(generation)
	on ctl scontrol requeue "${jobs[alice]}"
	poll 20 gone alice || fail "the pods stay when the job is put back"
	[[ -z $(generation) ]] || fail "a job that waits has addresses: $(generation)"
	poll 240 everywhere alice || fail "no network for the second start: $(on ctl scontrol show job "${jobs[alice]}")"
	[[ $(generation) != "$before" ]] || fail "the allocation is the one from before"
	for node in n1 n2; do
		poll 20 on $node pgrep -f "slurmstepd: \[${jobs[alice]}[.]extern\]" >/dev/null || fail "no extern step on $node: slurmd has not forgotten the job"
		seen=$(on $node sh -c 'pgrep -cx berth-pod; ls /run/berthd/net' | xargs)
		[[ $seen == "1 ${jobs[alice]}" ]] || fail "pods on $node: $seen"
	done
	serve alice n2 7000
	talks n1 n2 || fail "pods of the second start do not talk: $heard"
}
generation() { etcdctl get --prefix /berth/site/1/networks/ | grep "\"job\":${jobs[alice]}," | grep -o '"after":[0-9]*'; }

# strict_reverse_path: all hosts drop packets that arrive by another way than answers
# would take, the default of RHEL (rp_filter=1).
strict_reverse_path() {
	local host pod seen
	for host in "${hosts[@]}"; do on $host sh -c 'echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter'; done
	outside_serves
	job alice
	pod=$(pod_of alice n1)
	serve alice n2 7000
	talks n1 n2 || fail "pods do not talk: $heard"
	for host in login n2; do
		"$bed" run $host socat TCP-LISTEN:6900,reuseaddr,fork SYSTEM:'echo from $SOCAT_PEERADDR' >/dev/null 2>&1 &
		helpers+=($!)
		poll 20 step alice n1 socat -u "TCP:$(address $host):6900" - >"$out/seen" 2>/dev/null
		[[ $(<"$out/seen") == "from $pod" ]] || fail "pod to $host: '$(<"$out/seen")'"
	done
	seen=$(as alice login socat -u "TCP:$(pod_of alice n2):7000" - 2>&1)
	[[ $seen == "from $(address login)" ]] || fail "login to a pod: $seen"
	seen=$(reaches alice n1 $translated:7000)
	[[ $seen == "from $(gateway_of alice n1)" ]] || fail "through a gateway, translated: $seen"
	seen=$(reaches alice n1 $untranslated:7000)
	[[ $seen == "from $pod" ]] || fail "through a gateway: $seen"
	for host in "${hosts[@]}"; do on $host sh -c 'echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter'; done
}

# sessions_of_groups: sessions of users who share a network, one of them only in LDAP,
# each have a pod, and these reach each other. Bob's does not.
sessions_of_groups() {
	local user
	for user in carol dave; do
		as $user login sh -c 'mkdir -p -m 700 .ssh && rm -f .ssh/* && ssh-keygen -q -t ed25519 -N "" -f .ssh/id_ed25519 && cp .ssh/id_ed25519.pub .ssh/authorized_keys
			printf "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\nBatchMode yes\n" >.ssh/config' || fail "keys of $user"
	done
	stay carol
	from_outside dave -tt login 'exec python3 -m http.server 8888' >/dev/null 2>&1 </dev/null &
	helpers+=($!)
	poll 20 from_outside dave login 'curl -sf http://localhost:8888/ >/dev/null' || fail "dave has no session"
	[[ $(from_outside dave login 'id -un; cat /proc/1/comm') == $'dave\nberth-pod' ]] || fail "dave's session: $(from_outside dave login 'id -un; cat /proc/1/comm')"
	from_outside carol login "curl -sf -m 5 http://$(session_address dave):8888/ >/dev/null" || fail "carol does not reach dave"
	! from_outside carol login 'curl -sf -m 2 http://localhost:8888/ >/dev/null' || fail "carol is in dave's pod"
	! from_outside bob login "curl -sf -m 2 http://$(session_address dave):8888/ >/dev/null" || fail "bob reaches dave"
	lose_clients
	poll 20 no_sessions || fail "after all sessions: $(left_on login) $(etcdctl get --prefix /berth/site/1/networks/)"
}

# rolled_out: on a node whose plugstack.conf does not name the plugin, jobs run in the
# hosts' network, beside other users' pods, and the doctor reports it. A job on both
# kinds of nodes fails if its first node is without the plugin. Otherwise it has a
# network on the other nodes.
rolled_out() {
	local host seen
	host=$(on n2 readlink /proc/1/ns/net)
	on n2 mount --bind /dev/null /etc/slurm/plugstack.conf
	seen=$(on n2 /srv/site/berthd doctor 2>&1)
	[[ $seen == *"WRONG Slurm loads the plugin: /etc/slurm/plugstack.conf does not name spank_berth.so"* ]] || fail "the doctor: $seen"
	jobs[alice]=$(as alice login sbatch --parsable -N1 -n1 -w n1 --mem=100 -o /dev/null --wrap 'sleep 300')
	poll 20 on n1 test -e "/run/berthd/pods/${jobs[alice]}" || fail "no network on the node with the plugin"
	seen=$(as alice login srun -Q -N1 -n1 -w n2 --mem=100 readlink /proc/self/ns/net 2>&1)
	[[ $seen == "$host" ]] || fail "on the node without: $seen, want $host"
	seen=$(as alice login srun -Q -N2 -n2 --mem=100 sh -c 'echo $(hostname) $(ip -o -4 addr show dev eth0 | grep -c 10.200)' 2>&1 | sort | xargs)
	[[ $seen == "n1 1 n2 0" ]] || fail "a job over both: $seen"
	on ctl scancel "${jobs[alice]}"
	poll 20 settled || fail "left: $(etcdctl get --prefix /berth/site/1/networks/)"
	on n2 umount /etc/slurm/plugstack.conf
	on n1 mount --bind /dev/null /etc/slurm/plugstack.conf
	seen=$(as alice login srun -Q -N2 -n2 --mem=100 true 2>&1) && fail "a job whose first node is without the plugin has run"
	[[ $seen == *"this job has no network"* ]] || fail "alice reads: $seen"
	on n1 umount /etc/slurm/plugstack.conf
	poll 30 runs alice || fail "no job starts afterwards"
}

# power_lost: a node loses power under jobs, with everything in its memory. Jobs on
# other nodes and new jobs continue. Its addresses are free when the controller has
# given it up, and it takes part again when it is back.
power_lost() {
	local before
	job bob --no-requeue
	job alice --no-requeue
	before=${jobs[alice]}
	"$bed" lose n2 || fail "n2 does not end"
	wait "${daemons[n2]}" "${daemons[sshd-n2]}" 2>/dev/null
	jobs[alice]=$(as alice login sbatch --parsable -N1 -n1 -w n1 --mem=100 -o /dev/null --wrap 'sleep 300')
	poll 20 on n1 test -e "/run/berthd/pods/${jobs[alice]}" || fail "no network for a job on the node that is left"
	[[ $(etcdctl get --prefix /berth/site/1/networks/) == *'"node":"n2"'* ]] || fail "addresses are given back before the controller says so"
	on ctl scontrol update nodename=n2 state=down reason=power
	poll 30 eval '[[ $(etcdctl get --prefix /berth/site/1/networks/) != *n2* ]]' || fail "etcd still has $(etcdctl get --prefix /berth/site/1/networks/)"
	poll 20 eval '! on n1 test -e "/run/berthd/net/$before"' || fail "n1 keeps the pod of a job that is over"
	"$bed" start n2 || fail "n2 does not come back"
	start n2 n2 run
	start_sshd n2
	poll 30 answers n2 || fail "berthd does not start on n2"
	poll 10 has_sshd n2 || fail "sshd does not start on n2"
	# Slurm may have noticed it already.
	on ctl scontrol update nodename=n2 state=resume 2>/dev/null
	poll 60 runs bob || fail "no job starts on the node that is back: $(on ctl sinfo -h -N -o '%N %T')"
	job alice
	serve alice n2 7000
	talks n1 n2 || fail "pods do not reach each other: $heard"
}

# full: if berthd's directory has no space, a job reports that, and the next one runs
# when there is space.
full() {
	local seen
	on n1 sh -c 'mount -o remount,size=$(($(df -k --output=used /run | tail -n 1) + 64))k /run; cat /dev/zero >/run/full' 2>/dev/null
	seen=$(as alice login srun -Q -N1 -n1 -w n1 --mem=100 hostname 2>&1) && fail "it ran: $seen"
	[[ $seen == *"this job has no network"*"no space left"* ]] || fail "alice reads: $seen"
	on n1 sh -c 'rm /run/full; mount -o remount,size=50% /run'
	poll 30 runs alice || fail "no job starts afterwards"
	# Entries that do not fit in the audit log are in berthd's own log.
	on n1 sh -c 'mount -t tmpfs -o size=4k tmpfs /var/log && cat /dev/zero >/var/log/full' 2>/dev/null
	runs alice || fail "no job starts where the audit log is full"
	grep 'write the audit log' "$out/n1.log" | grep -q 'no space left.*joined.*alice' || fail "what the audit log lacks is not in the log: $(tail -n 5 "$out/n1.log")"
	on n1 umount /var/log
}

# etcd_full: etcd ends with a message when its disk is full. Running jobs continue,
# new ones report what is missing. With some space everything recovers.
etcd_full() {
	local seen before
	stop_etcd
	on ctl sh -c 'rm -r /run/etcd; mkdir /run/etcd; mount -t tmpfs -o size=200m tmpfs /run/etcd'
	start_etcd
	poll 30 registered || fail "etcd does not start on its own disk"
	job alice
	serve alice n2 7000
	before=$(pod_of alice n1)
	on ctl sh -c 'cat /dev/zero >/run/etcd/full' 2>/dev/null
	poll 60 overflows || fail "etcd goes on"
	wait "${daemons[etcd]}" 2>/dev/null
	talks n1 n2 || fail "pods do not reach each other without etcd: $heard"
	seen=$(as bob login srun -Q -N1 -n1 --mem=100 hostname 2>&1) && fail "a job has started: $seen"
	[[ $seen == *"this job has no network"*etcd* ]] || fail "bob reads: $seen"
	grep -q "no space left" "$out/etcd.log" || fail "etcd does not say why: $(tail -n 5 "$out/etcd.log")"
	on ctl rm /run/etcd/full
	start_etcd
	poll 60 restored "$before" || fail "etcd has $(pod_of alice n1), want $before"
	poll 60 runs bob || fail "no job starts afterwards"
	talks n1 n2 || fail "pods do not reach each other afterwards: $heard"
	on ctl scancel "${jobs[alice]}"
	poll 20 gone alice || fail "the job does not end"
	stop_etcd
	on ctl sh -c 'umount /run/etcd && rm -r /run/etcd'
	start_etcd
	poll 30 registered || fail "nodes are not registered again"
}

# overflows writes useless keys until etcd is gone.
overflows() {
	local number=$((RANDOM % 1000))
	printf '{"key":"%s","value":"%s"}' "$(printf '/overflow/%d' $number | base64 -w0)" "$(head -c 1000000 /dev/zero | base64 -w0)" |
		on ctl curl -sS --max-time 5 --cacert /etc/berth/ca.crt --cert /etc/berth/node.crt --key /etc/berth/node.key \
			https://127.0.0.1:2381/v3/kv/put -d @- >/dev/null 2>&1
	! on ctl pgrep -f '^/srv/site/berthd etcd' >/dev/null
}

# three_members: etcd has three members. One of them may end or lose its network.
# Without two there are no new jobs, and running ones continue.
three_members() {
	local seen
	with_three
	job alice
	serve alice n2 7000
	stop_member ctl
	poll 60 runs bob || fail "no job starts without one member"
	stop_member n1
	talks n2 n1 || talks n1 n2 || fail "pods do not reach each other: $heard"
	seen=$(as bob login srun -Q -N1 -n1 --mem=100 hostname 2>&1) && fail "a job has started: $seen"
	[[ $seen == *"this job has no network"*etcd* ]] || fail "bob reads: $seen"
	member ctl
	poll 60 runs bob || fail "no job starts with two members again"
	member n1
	"$bed" cut login
	poll 60 new_job bob || fail "no job starts while one member is cut off"
	# The minority side of the cut assigns no addresses.
	! seen=$(as bob login /srv/site/berth-session </dev/null 2>&1) || fail "a session begins on a host that is cut off: $seen"
	[[ $seen == *"berth: "*etcd* ]] || fail "bob reads on the host that is cut off: $seen"
	"$bed" mend login
	poll 60 runs bob || fail "no job starts afterwards"
	seen=$(etcdctl get --prefix /berth/site/1/networks/ | grep -o '"address":"[^"]*"' | sort | uniq -d)
	[[ -z $seen ]] || fail "given out twice: $seen"
	on ctl scancel "${jobs[alice]}"
	poll 20 gone alice || fail "the job does not end"
	without_three
}

# with_three starts three members instead of one. without_three undoes it.
declare -A members=([ctl]=a [login]=b [n1]=c)
with_three() {
	local host
	stop_site
	stop_etcd
	cluster=''
	for host in "${!members[@]}"; do cluster+="${cluster:+,}${members[$host]}=https://$(address $host):2380"; done
	configuration >"$out/site.yaml"
	sed "s|endpoints: .*|endpoints: [\"https://$(address ctl):2379\", \"https://$(address login):2379\", \"https://$(address n1):2379\"]|" "$out/site.yaml" |
		on ctl sh -c 'cat >/run/three.yaml'
	for host in "${hosts[@]}"; do
		[[ $host == ctl ]] || on ctl cat /run/three.yaml | on $host sh -c 'cat >/run/three.yaml'
	done
	for host in "${!members[@]}"; do member $host; done
	start_site --config /run/three.yaml
	poll 60 registered || fail "no member of etcd answers"
}
without_three() {
	local host
	stop_site
	for host in "${!members[@]}"; do
		stop_member $host
		on $host rm -rf /run/etcd3 /run/three.yaml
	done
	start_etcd
	start_site
	poll 60 registered || fail "etcd does not come back"
}
member() { # HOST [OPTION]
	start "etcd-$1" "$1" etcd --config /run/three.yaml --name "${members[$1]}" --host "$(address "$1")" --data /run/etcd3 --cluster "$cluster" "${@:2}"
}
stop_member() { # HOST
	on "$1" sh -c 'kill -9 $(pgrep -f "[b]erthd etcd")'
	wait "${daemons[etcd-$1]}" 2>/dev/null
	unset "daemons[etcd-$1]"
}
stop_site() {
	local host
	for host in "${hosts[@]}"; do
		on "$host" sh -c 'kill -9 $(pgrep -f "[b]erthd run")'
		wait "${daemons[$host]}" 2>/dev/null
	done
}
start_site() { # ARGS...
	local host
	for host in "${hosts[@]}"; do start "$host" "$host" run "$@"; done
	for host in "${hosts[@]}"; do poll 30 answers "$host" || fail "berthd does not start on $host"; done
}
# new_job USER runs a job from ctl, because the login host is cut off.
new_job() { [[ $(as "$1" ctl srun -Q -N2 -n2 --mem=100 hostname 2>/dev/null | sort) == $'n1\nn2' ]]; }

# many: fifty jobs of two users on both nodes, four at a time, each get a network and
# leave nothing: no namespace, file or descriptor, and no key in etcd. SITE_MANY=500
# makes each user start 500, a thousand in all.
many() {
	local user seen before memory each=${SITE_MANY:-25}
	for user in alice bob; do as $user login srun -Q -N2 -n2 --mem=100 true || fail "$user's first job"; done
	poll 20 settled || fail "left: $(etcdctl get --prefix /berth/site/1/networks/)"
	# The keys of daemons that were killed in an earlier case live for ten seconds.
	poll 20 eval '[[ $(etcdctl get --prefix /berth/site/1/collector | wc -l) == "${#hosts[@]}" ]]' || fail "collectors: $(etcdctl get --prefix /berth/site/1/collector)"
	before=$(holdings) memory=$(memory)
	for user in alice bob; do
		as $user login sh -c 'rm -f seen; sbatch -Q --array=1-$1 -N2 -n2 -c2 --mem=100 -o /dev/null --wrap "srun -c2 sh -c \"ip -o -4 addr show dev eth0 | grep -o 10.200.* | cut -d/ -f1 >>seen; sleep 0.5\""' sh "$each" || fail "submit $user's jobs"
	done
	poll $((10 * each)) no_jobs || fail "jobs do not end: $(on ctl squeue)"
	for user in alice bob; do
		seen=$(as $user login grep -c '^10[.]200[.]0[.][0-9]*$' seen)
		[[ $seen == $((2 * each)) ]] || fail "of $((2 * each)) pods of $user $seen had a network"
		as $user login rm seen
	done
	poll 20 settled || fail "left: $(etcdctl get --prefix /berth/site/1/networks/)"
	poll 20 unchanged "$before" || fail "$before have become $(holdings)"
	say "memory of berthd on n1: $memory KB, and $(memory) KB after $((2 * each)) jobs"
	(($(memory) < memory + 12 * 1024)) || fail "berthd on n1 has $(memory) KB of memory, and had $memory KB before $((2 * each)) jobs"
}
# memory prints the anonymous memory of berthd on n1, in KB. In 1,200 jobs 7.2 MB
# became 10.4, most of it in the first 400: Go's collector runs at twice the memory in
# use.
memory() { on n1 sh -c 'grep RssAnon /proc/$(pgrep -f "[b]erthd run")/status' | grep -o '[0-9]*'; }
no_jobs() { [[ -z $(on ctl squeue -h) ]]; }
unchanged() { [[ $(holdings) == "$1" ]]; }

# holdings prints the open descriptors of berthd on the nodes, the mounts there, and
# the number of keys in etcd.
holdings() {
	local node
	for node in n1 n2; do
		# shellcheck disable=SC2016
		on $node sh -c 'echo "$(hostname): $(ls /proc/$(pgrep -f "[b]erthd run")/fd | wc -l) descriptors, $(wc -l </proc/self/mountinfo) mounts, $(find /run/berthd | wc -l) files"'
	done
	on ctl curl -sS --cacert /etc/berth/ca.crt --cert /etc/berth/node.crt --key /etc/berth/node.key https://127.0.0.1:2381/v3/kv/range \
		-d "{\"key\":\"$(printf /berth/site/1/ | base64 -w0)\",\"range_end\":\"$(printf /berth/site/10 | base64 -w0)\",\"count_only\":true}" | grep -o '"count":"[0-9]*"'
}

# fuzzed: twenty seconds of random input for each parser of users' bytes.
fuzzed() {
	local target seen
	for target in FuzzDecode FuzzReadMessage FuzzParseNames; do
		seen=$(go test -run '^$' -fuzz "^$target\$" -fuzztime 20s -parallel 2 ./internal/site/siteconf 2>&1) || fail "$target: $seen"
	done
}

# berthd_away: berthd of the first node of a job, or of another one, is away for 20 s when the job
# starts, as in an upgrade. No job is lost. (srun waits less long for another step in a job that
# runs already.)
berthd_away() {
	local away batch client
	for away in n1 n2; do
		on $away sh -c 'kill -9 $(pgrep -f "[b]erthd run")'
		wait "${daemons[$away]}" 2>/dev/null
		as alice login sh -c 'sbatch -Q -W -N2 -n2 --mem=100 -o slurm.out --wrap hostname </dev/null; cat slurm.out' >"$out/batch" 2>&1 &
		batch=$!
		as bob login srun -Q -N2 -n2 --mem=100 hostname >"$out/client" 2>&1 &
		client=$!
		poll 60 waited $away 20 || fail "no step waits on $away: $(on $away ps -C slurmstepd -o etimes=,args=)"
		start $away $away run
		wait "$batch"
		wait "$client" || fail "srun, while berthd of $away is away: $(<"$out/client")"
		[[ $(<"$out/batch") == n1 ]] || fail "sbatch, while berthd of $away is away: $(<"$out/batch")"
		[[ $(sort "$out/client") == $'n1\nn2' ]] || fail "srun, while berthd of $away is away: $(<"$out/client")"
	done
	poll 20 all_idle || fail "nodes: $(on ctl sinfo -h -N -o "%N %T %E")"
}
# waited NODE SECONDS: two steps have waited so long there.
waited() { (($(on "$1" sh -c 'ps -C slurmstepd -o etimes=' | awk -v least="$2" '$1 >= least' | wc -l) >= 2)); }

# held_without_network: a batch job that gets no network waits in the queue, held and with the
# reason, and runs when it is released. Slurm lets no other job do so: these end.
held_without_network() {
	local job seen
	stop_etcd
	job=$(as alice login sbatch --parsable -N1 -n1 --mem=100 -o held.out --wrap hostname)
	seen=$(as alice login sbatch -Q -W --no-requeue -N1 -n1 --mem=100 -o once.out --wrap hostname </dev/null; as alice login cat once.out)
	[[ $seen == *"this job has no network"*etcd* && $seen != *held* ]] || fail "a job that cannot be requeued prints: $seen"
	poll 60 is_held "$job" || fail "the job is: $(on ctl scontrol show job "$job")"
	[[ $(on ctl scontrol show job "$job") == *"AdminComment=berth: no network"*etcd*"scontrol release $job"* ]] || fail "no reason: $(on ctl scontrol show job "$job")"
	poll 30 all_nodes_idle || fail "nodes: $(on ctl sinfo -h -N -o '%N %T %E')"
	start_etcd
	poll 20 registered || fail "etcd does not come back"
	on ctl scontrol release "$job"
	on ctl scontrol update JobId="$job" StartTime=now
	poll 60 eval '[[ $(as alice login cat held.out) == n[12] ]]' || fail "after its release: $(on ctl scontrol show job "$job") $(as alice login cat held.out)"
}
is_held() { [[ $(on ctl squeue -h -j "$1" -o '%T %r') == "PENDING "*[hH]eld* ]]; }
all_nodes_idle() { [[ $(on ctl sinfo -h -o %t | sort -u) == idle ]]; }
