# shellcheck shell=bash
# Numbers of jobs and of users that come to mean something else.

# numbers_again: slurmctld comes back with an old state, and gives bob's job the number of alice's,
# which still runs on the nodes. Bob's job has its own network and processes, and what is left of
# alice's is removed.
numbers_again() {
	local old number seen
	stop_daemon ctl slurmctld
	on ctl cp -a /var/spool/slurmctld /run/old-state
	start_daemon ctl slurmctld -D
	poll 60 all_nodes_idle || fail "nodes: $(on ctl sinfo -h -N -o '%N %T %E')"
	job alice
	serve alice n1 7000
	serve alice n2 7000
	number=${jobs[alice]} old=$(step alice n1 readlink /proc/self/ns/net)
	stop_daemon ctl slurmctld KILL
	on ctl sh -c 'rm -r /var/spool/slurmctld && mv /run/old-state /var/spool/slurmctld'
	start_daemon ctl slurmctld -D
	poll 30 submits_again || fail "slurmctld takes no job"
	[[ ${jobs[bob]} == "$number" ]] || fail "bob's job has the number ${jobs[bob]}, and alice's had $number"
	# slurmd remembers that a job of that number has ended, and Slurm holds the job.
	poll 60 eval 'bobs_everywhere || is_held $number' || fail "bob's job neither starts nor waits: $(on ctl scontrol show job "$number")"
	if is_held "$number"; then
		say "Slurm holds the job: $(on ctl squeue -h -j "$number" -o %r)"
		poll 30 on ctl scontrol release "$number" || fail "bob's job is not released"
	fi
	poll 150 eval 'on ctl scontrol update "JobId=$number" StartTime=now 2>/dev/null; bobs_everywhere' || fail "no network for bob's job: $(on ctl scontrol show job "$number") $(on n1 /srv/site/berthd status)"
	for node in n1 n2; do
		seen=$(step bob $node sh -c 'readlink /proc/self/ns/net; ps -e -o user= | sort -u | xargs; id -un' 2>&1)
		[[ $seen != *"$old"* && $seen != *alice* && $seen == *bob ]] || fail "bob's job on $node: $seen, and alice's was in $old"
		! root bob $node socat -u TCP:127.0.0.1:7000,connect-timeout=2 - 2>/dev/null | grep -q from || fail "bob is in alice's pod on $node"
		seen=$(on $node pgrep -u "$(settings id_of alice)" -a)
		[[ -z $seen ]] || fail "of alice's job on $node are left: $seen"
	done
	seen=$(etcdctl get --prefix /berth/site/1/networks/)
	[[ $seen != *'"user":"alice"'* ]] || poll 20 eval '[[ $(etcdctl get --prefix /berth/site/1/networks/) != *alice* ]]' || fail "etcd keeps alice's addresses: $seen"
	on ctl scancel "$number"
	poll 30 gone bob || fail "bob's job does not end"
	poll 60 all_nodes_idle || fail "nodes: $(on ctl sinfo -h -N -o '%N %T %E')"
	runs alice || fail "no job starts afterwards"
}
submits_again() { jobs[bob]=$(as bob login sbatch --parsable -N2 -n2 --mem=100 -o /dev/null --wrap 'sleep 300' 2>/dev/null); }
bobs_everywhere() {
	local node
	for node in n1 n2; do
		on $node grep -q '"user":"bob"' "/run/berthd/pods/${jobs[bob]}" 2>/dev/null || return 1
	done
}

# uid_changed: alice's number changes while her job runs. The job goes on. Her new jobs and sessions
# are another user's for berth: they are in another network and do not reach the former job, nor its
# names.
uid_changed() {
	local passwd before after seen former
	passwd=$(settings eval 'echo $state')/etc/passwd
	before=$(settings id_of alice) after=$((before + 40))
	job alice -J former
	former=${jobs[alice]}
	serve alice n2 7000
	seen=$(pod_of alice n2)
	# Write in place: hosts would not see a file that replaces it.
	cp "$passwd" "$out/passwd"
	sed "s/^alice:x:$before:/alice:x:$after:/" "$out/passwd" >"$passwd"
	chown -R "$after" "$(settings eval 'echo $state')/home/alice"
	on n1 nsenter --net="/run/berthd/net/$former" socat -u "TCP:$seen:7000,connect-timeout=5" - >"$out/seen" 2>&1
	[[ $(<"$out/seen") == "from "* ]] || fail "the former job does not go on: $(<"$out/seen")"
	job alice -J latter
	[[ $(network_of alice) != "$(etcdctl get --prefix /berth/site/1/networks/ | grep "\"job\":$former," | grep -o '"vni":[0-9]*' | cut -d: -f2)" ]] || fail "both jobs are in one network"
	! step alice n1 socat -u "TCP:$seen:7000,connect-timeout=2" - 2>/dev/null | grep -q from || fail "the new job reaches the former one"
	[[ -z $(step alice n1 getent hosts former) ]] || fail "the new job knows the former one's name: $(step alice n1 getent hosts former)"
	seen=$(from_outside alice login 'id -u; getent hosts latter | wc -l' 2>&1)
	[[ $seen == "$after"$'\n'2 ]] || fail "a session: $seen"
	on n1 grep "\"pod\":\"${jobs[alice]}\"" /var/log/berth-audit.log | grep -q "\"uid\":$after" || fail "the audit log: $(on n1 tail -n 2 /var/log/berth-audit.log)"
	on ctl scancel "$former" "${jobs[alice]}"
	poll 30 settled || fail "left: $(etcdctl get --prefix /berth/site/1/networks/)"
	cat "$out/passwd" >"$passwd"
	chown -R "$before" "$(settings eval 'echo $state')/home/alice"
	runs alice || fail "no job starts when she has her number again"
}
