# shellcheck shell=bash
# Nodes that cannot give jobs a network, or would give them the hosts'.

# The number of jobs that each of three users submits at a time, half of them by sbatch, and how
# long etcd is away, in seconds. SITE_QUEUED=66 SITE_ETCD_AWAY=600 is the long form.
queued=${SITE_QUEUED:-12}
etcd_gone_for=${SITE_ETCD_AWAY:-20}

# ill_nodes: berthd is gone for good on one node, then etcd is away, then a disk is full, each while
# three users have many jobs in the queue. Every batch job runs, once and in its user's network.
# Jobs of srun run or end with the reason. Only the ill node is drained, and none without etcd.
ill_nodes() {
	local since
	restart_site 's|^pods: .*|pods: 10.200.0.0/24|'
	gone_for_good n2
	submit_burst
	poll 90 drained_for n2 'berth: berthd does not answer' || fail "n2: $(node_states)"
	finish_burst 'berthd does not answer|does berthd run there'
	drained_for n2 'berth: berthd does not answer' || fail "n2 is back without berthd: $(node_states)"
	start n2 n2 run --config /run/changed.yaml
	poll 60 all_nodes_idle || fail "n2 stays away after its berthd is back: $(node_states)"

	stop_etcd
	since=$SECONDS
	submit_burst
	poll $((etcd_gone_for + 60)) eval '((SECONDS - since >= etcd_gone_for)) && held_jobs' || fail "no job is held without etcd: $(on ctl squeue)"
	! on ctl sinfo -h -o %t | grep -q drain || fail "nodes without etcd: $(node_states)"
	start_etcd
	poll 30 registered || fail "etcd does not come back"
	finish_burst 'etcd|has none after'
	! on ctl sinfo -h -o %t | grep -q drain || fail "nodes after etcd was away: $(node_states)"

	on n1 sh -c 'mount -o remount,size=$(($(df -k --output=used /run | tail -n 1) + 4))k /run; cat /dev/zero >/run/full' 2>/dev/null
	submit_burst
	poll 60 drained_for n1 'berth: .*no space left' || fail "n1: $(node_states)"
	finish_burst 'no space left'
	on n1 sh -c 'rm /run/full; mount -o remount,size=50% /run'
	poll 60 all_nodes_idle || fail "n1 stays away with room: $(node_states)"
	restart_site ''
}

gone_for_good() { # NODE
	on "$1" sh -c 'kill -9 $(pgrep -f "[b]erthd run")'
	wait "${daemons[$1]}" 2>/dev/null
}
node_states() { on ctl sinfo -h -N -o '%N %T %E' | sort -u | xargs; }
drained_for() { on ctl sinfo -h -N -n "$1" -o '%T %E' | grep -qE "^drain[a-z*]* $2"; }
held_jobs() { on ctl squeue -h -t PD -o %r | grep -qi held; }

# submit_burst submits $queued jobs of each user. Each writes its address to its own file.
burst_users=(alice bob carol)
bursts=()
submit_burst() {
	local user
	bursts=()
	for user in "${burst_users[@]}"; do
		# shellcheck disable=SC2016
		limit=900 as "$user" login sh -c '
			rm -rf burst; mkdir burst
			for i in $(seq 1 2 "$1"); do
				sbatch -Q -N1 -n1 --mem=100 -o burst/batch$i --wrap "echo \$SLURM_JOB_ID \$(ip -o -4 addr show dev eth0) >>burst/ran$i" || echo "$i is not submitted" >>burst/wrong
				{ srun -Q -N1 -n1 --mem=100 sh -c "echo \$SLURM_JOB_ID \$(ip -o -4 addr show dev eth0) >burst/did$((i + 1))" 2>burst/said$((i + 1)) || echo $? >burst/code$((i + 1)); } &
			done
			wait' sh "$queued" >/dev/null 2>&1 &
		bursts+=($!)
	done
}

# finish_burst REASON waits for all jobs, after it has released what is held, and checks what they
# have written.
finish_burst() {
	local user text want=$(((queued + 1) / 2))
	poll $((queued * 20 + 120)) all_have_run || fail "jobs do not end: $(on ctl squeue) $(node_states)"
	wait "${bursts[@]}"
	on n1 cat /var/log/berth-audit.log >"$out/audit"
	on n2 cat /var/log/berth-audit.log >>"$out/audit"
	for user in "${burst_users[@]}"; do
		# shellcheck disable=SC2016
		text=$(as "$user" login sh -c 'cd burst; cat wrong 2>/dev/null; cat ran* | wc -l; ls ran* | wc -l')
		[[ $(xargs <<<"$text") == "$want $want" ]] || fail "$want batch jobs of $user: $text"
		text=$(as "$user" login sh -c 'cat burst/ran* burst/did* 2>/dev/null')
		in_own_network "$user" <<<"$text" || fail "not in the network of $user: $text"
		# shellcheck disable=SC2016
		text=$(as "$user" login sh -c 'cd burst; for code in code*; do [ -e $code ] || continue; grep -qE "this job has no network: .*($1)" said${code#code} || { echo "$code: $(cat $code) $(cat said${code#code})"; }; done' sh "$1")
		[[ -z $text ]] || fail "srun of $user ends without the reason: $text"
		say "$user: $(as "$user" login sh -c 'cd burst; echo $(ls did* 2>/dev/null | wc -l) jobs of srun ran, $(ls code* 2>/dev/null | wc -l) had no network')"
	done
	[[ $(grep -h '"event":"joined"' "$out/audit" | grep -oE '"user":"(alice|bob|carol)".*"network":[0-9]*' | sed 's/"job.*"network"/"network"/; s/"name.*"network"/"network"/' | sort -u | wc -l) -le 3 ]] || fail "users had several networks"
}

# in_own_network USER reports whether the audit log gives each job of the input its address, as a job
# of that user.
in_own_network() {
	local job address rest
	while read -r job rest; do
		[[ $rest =~ inet\ (10\.200\.0\.[0-9]+)/ ]] || return 1
		address=${BASH_REMATCH[1]}
		grep -q '"event":"joined".*"user":"'"$1"'","job":'"$job"',.*"address":"'"$address"'"' "$out/audit" || return 1
	done
}

# all_have_run reports whether the queue is empty. It starts at once what Slurm keeps waiting, as an
# administrator may: what is held, and for two minutes what was requeued.
all_have_run() {
	on ctl sh -c 'squeue -h -t PD -o "%A %r" | while read -r job reason; do
		case $reason in
		*[hH]eld*) scontrol release $job ;;
		BeginTime) scontrol update JobId=$job StartTime=now ;;
		esac
	done; [ -z "$(squeue -h)" ]' 2>/dev/null
}

# fails_closed: on nodes where Slurm does not load the plugin, because it is of another release, its
# path is wrong, or nothing names it, no task runs, and the node is drained with the reason: by a
# prolog when a job begins, and by HealthCheckProgram without a job. It is back when that is mended.
fails_closed() {
	local conf sort reason seen job
	conf=$(settings eval 'echo $state')/etc/slurm/slurm.conf
	cp "$conf" "$out/slurm.conf"
	printf '#!/bin/sh\nexec /srv/site/berthd healthcheck\n' >"$stage/healthcheck"
	chmod 755 "$stage/healthcheck"
	other_release || fail "no plugin of another release"
	reconfigure Prolog=/srv/site/healthcheck
	seen=$(as alice login srun -Q -N2 -n2 --mem=100 hostname 2>&1 | sort | xargs)
	[[ $seen == "n1 n2" ]] || fail "with the prolog on good nodes: $seen $(node_states)"
	for sort in release path none; do
		case $sort in
		release) stack='optional /srv/site/other/spank_berth.so' reason='berth: .* was built for Slurm 21.08' ;;
		path) stack='optional /srv/site/nowhere/spank_berth.so' reason='berth: .* which is not there' ;;
		none) stack='' reason='berth: .* does not name spank_berth.so' ;;
		esac
		without_plugin n2 "$stack"
		as alice login rm -f where
		job=$(as alice login sbatch --parsable -N2 -n2 --mem=100 -o /dev/null --wrap 'srun hostname >>where')
		poll 30 drained_for n2 "$reason" || fail "$sort: $(node_states)"
		poll 30 eval '[[ $(on ctl squeue -h -j $job -o %T) == PENDING ]]' || fail "$sort: the job: $(on ctl squeue)"
		as alice login test ! -e where || fail "$sort: the job ran on $(as alice login cat where)"
		with_plugin n2
		poll 60 eval '[[ $(on ctl sinfo -h -n n2 -o %t) == idle ]]' || fail "$sort: n2 is not back: $(node_states)"
		poll 90 eval 'all_have_run; [[ $(as alice login sort where 2>/dev/null | xargs) == "n1 n2" ]]' || fail "$sort: the job does not run afterwards: $(on ctl scontrol show job $job)"
		poll 30 all_idle || fail "$sort: $(node_states) $(on ctl squeue)"
		without_plugin n2 "$stack"
		seen=$(as alice login timeout 30 srun -Q -N1 -n1 -w n2 --mem=100 sh -c 'echo it ran' 2>&1)
		[[ $seen != *"it ran"* ]] || fail "$sort: srun on n2: $seen"
		on ctl sh -c 'squeue -h -o %A | xargs -r scancel'
		with_plugin n2
		poll 60 all_idle || fail "$sort: n2 is not back after srun: $(node_states)"
	done
	reconfigure HealthCheckProgram=/srv/site/healthcheck HealthCheckInterval=3
	without_plugin n2 ''
	poll 60 drained_for n2 'berth: .* does not name spank_berth.so' || fail "by HealthCheckProgram: $(node_states)"
	with_plugin n2
	poll 60 all_idle || fail "n2 is not back: $(node_states)"
	on ctl scontrol update NodeName=n2 State=DRAIN Reason=maintenance
	gone_for_good n2
	gone_for_good n1
	poll 90 drained_for n1 'berth: ' || fail "n1 without berthd, by HealthCheckProgram: $(node_states)"
	start n1 n1 run
	start n2 n2 run
	poll 60 eval '[[ $(on ctl sinfo -h -n n1 -o %t) == idle ]]' || fail "n1 is not back: $(node_states)"
	drained_for n2 maintenance || fail "what an administrator has drained: $(node_states)"
	on ctl scontrol update NodeName=n2 State=RESUME
	cat "$out/slurm.conf" >"$conf"
	on ctl scontrol reconfigure
	poll 30 all_idle || fail "nodes: $(node_states)"
}

reconfigure() { # LINE...
	local conf
	conf=$(settings eval 'echo $state')/etc/slurm/slurm.conf
	{
		cat "$out/slurm.conf"
		printf '%s\n' "$@"
	} >"$out/changed.conf"
	cat "$out/changed.conf" >"$conf"
	on ctl scontrol reconfigure
}

# other_release builds the plugin as for an earlier release of Slurm: with its number in the header.
other_release() {
	mkdir -p "$out/include" "$stage/other" && cp -r /usr/include/slurm "$out/include/" &&
		sed -i 's/^#define SLURM_VERSION_NUMBER .*/#define SLURM_VERSION_NUMBER 0x150800/' "$out/include/slurm/"*.h &&
		make -s -C spank SLURM_PREFIX="$out" OUT="$out/other" && cp "$out/other/spank_berth.so" "$stage/other/"
}

without_plugin() { # NODE LINE
	echo "$2" | on "$1" sh -c 'cat >/run/plugstack && mount --bind /run/plugstack /etc/slurm/plugstack.conf'
}
with_plugin() { on "$1" umount /etc/slurm/plugstack.conf; }

# cancelled_waiting: a batch job that is cancelled while its step waits for a network does not come
# back, neither held, when etcd is away, nor to start elsewhere, when berthd is.
cancelled_waiting() {
	local job away
	# A step waits longer than the bed lets it be killed.
	cp "$(settings eval 'echo $state')/etc/slurm/slurm.conf" "$out/slurm.conf"
	reconfigure UnkillableStepTimeout=60
	for away in etcd berthd; do
		if [[ $away == etcd ]]; then stop_etcd; else gone_for_good n1; fi
		job=$(as alice login sbatch --parsable -N1 -n1 -w n1 --mem=100 -o /dev/null --wrap 'echo it ran >ran')
		poll 20 step_waits n1 || fail "$away: no step waits: $(on ctl squeue)"
		on ctl scancel "$job"
		poll 90 eval '! step_waits n1' || fail "$away: the step still waits"
		poll 30 eval '[[ -z $(on ctl squeue -h) ]]' || fail "$away: the job is back: $(on ctl scontrol show job "$job")"
		[[ $(on ctl scontrol show job "$job") == *"JobState=CANCELLED"* ]] || fail "$away: $(on ctl scontrol show job "$job")"
		if [[ $away == etcd ]]; then start_etcd; else start n1 n1 run; fi
		poll 30 registered || fail "$away does not come back"
		poll 60 all_idle || fail "$away: $(node_states)"
	done
	cat "$out/slurm.conf" >"$(settings eval 'echo $state')/etc/slurm/slurm.conf"
	on ctl scontrol reconfigure
	poll 30 all_idle || fail "nodes: $(node_states)"
}
step_waits() { on "$1" pgrep -x slurmstepd >/dev/null; }
