# shellcheck shell=bash
# Nodes that cannot give jobs a network, or would give them the hosts'.

gone_for_good() { # NODE
	on "$1" sh -c 'kill -9 $(pgrep -f "[b]erthd run")'
	wait "${daemons[$1]}" 2>/dev/null
}
node_states() { on ctl sinfo -h -N -o '%N %T %E' | sort -u | xargs; }
drained_for() { on ctl sinfo -h -N -n "$1" -o '%T %E' | grep -qE "^drain[a-z*]* $2"; }

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
