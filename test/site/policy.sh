# shellcheck shell=bash
# Rules and limits that a site might choose, and what must work beside them.

# slurm_passes: under rules that allow nothing, jobs start and end, and no node is drained. Only
# slurmstepd is exempt: tasks reach neither sshd nor another port of the submit host, also as root
# of a user namespace, and with packets marked as slurmstepd's are.
slurm_passes() {
	local rules seen server
	"$bed" run login socat TCP-LISTEN:6900,fork,reuseaddr /dev/null >/dev/null 2>&1 &
	server=$!
	helpers+=($server)
	# shellcheck disable=SC2016
	as alice login sh -c 'cat >attack' <<-'END'
		import socket, sys
		for port in 22, 6900:
		    for code in 0, 0xfc:
		        s = socket.socket()
		        s.settimeout(5)
		        s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, code)
		        try:
		            s.connect((sys.argv[1], port))
		            print("connected", port, code)
		        except OSError:
		            print("refused")
	END
	for rules in '/^policy:/,$d' '/^policy:/,$d; s|^cluster:|policy: {egress: [{addresses: [203.0.113.7/32]}]}\n&|'; do
		restart_site "$rules"
		seen=$(as alice login sh -c "sbatch -Q -W -N2 -n2 --mem=100 -o slurm.out --wrap 'python3 attack $(address login); unshare -Ur python3 attack $(address login)' </dev/null; echo ended with \$?; sort slurm.out | uniq -c")
		[[ $(xargs <<<"$seen") == "ended with 0 8 refused" ]] || fail "a job under '$rules': $seen"
		poll 20 all_idle || fail "after it ended: $(on ctl sinfo -h -N -o '%N %T %E')"
		job alice
		on ctl scancel "${jobs[alice]}"
		poll 20 all_idle || fail "after scancel: $(on ctl sinfo -h -N -o '%N %T %E') $(on ctl squeue -h)"
	done
	restart_site ''
	# The usual rules let the same program through, so the others have refused it.
	seen=$(as alice login sh -c "sbatch -Q -W -N2 -n2 --mem=100 -o slurm.out --wrap 'python3 attack $(address login)' </dev/null; grep -c connected slurm.out")
	[[ $seen == 4 ]] || fail "under the usual rules $seen of 4 connections succeed"
	kill $server
}
all_idle() { [[ -z $(on ctl squeue -h) && $(on ctl sinfo -h -o %t | sort -u) == idle ]]; }

# slurm_uncounted: a job that has used up its connections still ends, new steps start, and the
# audit log, the log and the metrics name the limit.
slurm_uncounted() {
	local seen
	restart_site 's|^policy:|&\n  flows: 256|'
	"$bed" run n2 python3 -c '
import socket
server, held = socket.create_server(("", 6900), backlog=600), []
while True: held.append(server.accept())' >/dev/null 2>&1 &
	helpers+=($!)
	poll 20 connects_to_n2 n1 || fail "nobody listens on n2"
	# shellcheck disable=SC2016
	as alice login sh -c 'cat >many' <<-'END'
		import socket, sys, time
		held, refused = [], 0
		for i in range(520):
		    s = socket.socket()
		    s.settimeout(2)
		    try:
		        s.connect((sys.argv[1], 6900))
		        held.append(s)
		    except OSError:
		        refused += 1
		    if refused > 20: break
		print("opened", len(held) > 200, "refused", refused > 20, flush=True)
		time.sleep(300)
	END
	jobs[alice]=$(as alice login sbatch --parsable -N2 -n2 --mem=100 -o many.out --wrap "python3 many $(address n2)")
	poll 60 as alice login grep -q "opened True refused True" many.out || fail "the job has: $(as alice login cat many.out)"
	poll 30 on n1 grep -q '"event":"limited".*"pod":"'"${jobs[alice]}"'".*policy.flows: [1-9][0-9]* packets' /var/log/berth-audit.log || fail "the audit log: $(on n1 tail -n 3 /var/log/berth-audit.log)"
	seen=$(on n1 curl -sf http://127.0.0.1:9418/metrics)
	[[ $seen == *$'\nberthd_flows_refused_total '[1-9]* ]] || fail "metrics: $seen"
	on ctl scancel "${jobs[alice]}"
	poll 20 all_idle || fail "after scancel: $(on ctl sinfo -h -N -o '%N %T %E') $(on ctl squeue -h)"
	restart_site ''
}
