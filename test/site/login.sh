# shellcheck shell=bash
# Sessions of users, by a real sshd.

# from_outside USER HOST [COMMAND...] is ssh from ctl, where nobody has a pod.
from_outside() {
	local user=$1
	shift
	as "$user" ctl ssh "$@"
}

# stay USER: a session on the login host that lasts as long as its client. Without a
# terminal sshd would let its program live.
stay() {
	rm -f "$out/stay"
	from_outside "$1" -tt login 'echo begun; exec sleep 300' >"$out/stay" 2>&1 </dev/null &
	helpers+=($!)
	poll 20 grep -q begun "$out/stay" || fail "no session of $1: $(<"$out/stay")"
}

# Those of ctl, which is nobody's but ours.
lose_clients() { on ctl sh -c 'kill -9 $(pgrep -x ssh)' 2>/dev/null; }

# session_address USER: what the login host has, whatever etcd has.
session_address() { on login cat "/run/berthd/pods/login-$(settings id_of "$1")-login" | sed 's/.*"address":"//; s/".*//'; }

no_sessions() { [[ -z $(left_on login) && -z $(etcdctl get --prefix /berth/site/1/networks/) ]]; }

# sessions: all of a user's on a login host are in one pod, which is made by the
# first and goes with the last; what ssh can do otherwise works in it.
sessions() {
	local seen
	# shellcheck disable=SC2016
	seen=$(from_outside alice login 'cat /proc/1/comm; id -un; ip -o link | grep -vc ": lo:"; getent hosts login.alice.bed | wc -l; exit 7')
	[[ $? -eq 7 && $seen == $'berth-pod\nalice\n1\n1' ]] || fail "a session: $seen"
	poll 20 no_sessions || fail "after the last session: $(left_on login)"
	stay alice
	seen=$(from_outside alice login 'ps -e -o user=,args= | grep "[s]leep 300"; readlink /proc/self/ns/net; readlink /proc/self/ns/net')
	[[ $seen == alice*sleep* && $(sort -u <<<"$seen" | wc -l) == 2 ]] || fail "a second session: $seen"
	[[ $(from_outside alice login readlink /proc/self/ns/net) == "$(tail -n 1 <<<"$seen")" ]] || fail "sessions are in two pods"
	seen=$(from_outside bob login 'ps -e -o user= | sort -u | xargs; readlink /proc/self/ns/net')
	[[ $seen == 'bob root'* && $seen != *"$(from_outside alice login readlink /proc/self/ns/net)"* ]] || fail "bob sees: $seen"
	seen=$(from_outside alice login 'grep -E "^(Uid|CapPrm|CapEff)" /proc/self/status' | xargs)
	[[ $seen == "Uid: $(yes "$(settings id_of alice)" | head -n 4 | xargs) CapPrm: 0000000000000000 CapEff: 0000000000000000" ]] || fail "rights: $seen"
	seen=$(from_outside alice -tt login 'test -t 0 && stty size && tty' </dev/null | tr -d '\r')
	[[ $seen == *"/dev/pts/"* ]] || fail "a terminal: $seen"
	# A login shell, with job control, and its exit code.
	seen=$(printf 'sleep 200 &\nkill %%1; wait; echo "shell $0"; exit 5\n' | from_outside alice -tt login | tr -d '\r')
	[[ $seen == *"shell -bash"* && $seen != *"no job control"* ]] || fail "a shell: $seen"
	printf 'exit 5\n' | from_outside alice login
	[[ $? -eq 5 ]] || fail "the exit code of a shell"
	seen=$(as alice ctl sh -c 'echo content >file; scp -q file login:copied; scp -q -O file login:copied-too; echo "get copied-too back" | sftp -q -b - login >/dev/null; cat copied back; rm -f file copied copied-too back')
	[[ $seen == $'content\ncontent' ]] || fail "scp and sftp: $seen"
	seen=$(as alice ctl ssh-agent sh -c 'ssh-add -q .ssh/id_ed25519; ssh -A login ssh-add -l; ssh-agent -k >/dev/null')
	[[ $seen == *ED25519* ]] || fail "the forwarded agent: $seen"
	# A client that is lost takes a session with a terminal with it.
	lose_clients
	poll 20 no_sessions || fail "after all sessions: $(left_on login)"
}

# sessions_apart: a web server on the loopback of one user's session, as a
# notebook has it, is reached by the user's other sessions, and by no one else.
sessions_apart() {
	local address host
	from_outside alice -tt login 'exec python3 -m http.server --bind 127.0.0.1 8888' >/dev/null 2>&1 </dev/null &
	helpers+=($!)
	poll 20 from_outside alice login 'curl -sf http://localhost:8888/ >/dev/null' || fail "alice does not reach her own"
	address=$(session_address alice)
	stay bob
	! from_outside bob login 'curl -sf -m 2 http://localhost:8888/' || fail "bob's session reaches it"
	! from_outside bob login "curl -sf -m 2 http://$address:8888/" || fail "bob's session reaches it by alice's address"
	for host in login n1; do
		! as bob $host curl -sf -m 2 http://localhost:8888/ || fail "bob on $host reaches it"
		! as bob $host curl -sf -m 2 "http://$address:8888/" || fail "bob on $host reaches it by alice's address"
	done
}

# forwards: what sshd forwards for a user begins and ends in his pod, and so does what his
# shell starts before berth-session is there; a connection without a session has the pod, too.
forwards() {
	local seen get=$'GET / HTTP/1.0\r\n\r\n'
	from_outside alice -tt login 'exec python3 -m http.server --bind 127.0.0.1 8888' >/dev/null 2>&1 </dev/null &
	helpers+=($!)
	poll 20 from_outside alice login 'curl -sf http://localhost:8888/ >/dev/null' || fail "alice does not reach her own"
	seen=$(printf %s "$get" | from_outside alice -W localhost:8888 login 2>&1)
	[[ $seen == "HTTP/1.0 200"* ]] || fail "alice's port is not forwarded: $seen"
	from_outside alice -tt login 'exec python3 -m http.server 8890' >/dev/null 2>&1 </dev/null &
	helpers+=($!)
	poll 20 from_outside alice login 'curl -sf http://localhost:8890/ >/dev/null' || fail "alice does not reach her second server"
	seen=$(printf %s "$get" | from_outside alice -W login.alice.bed:8890 login 2>&1)
	[[ $seen == "HTTP/1.0 200"* ]] || fail "a name is not known where sshd forwards: $seen"
	seen=$(printf %s "$get" | from_outside bob -W localhost:8888 login 2>&1) && fail "bob reaches it: $seen"
	on login python3 -m http.server --bind 127.0.0.1 8889 >/dev/null 2>&1 &
	helpers+=($!)
	poll 20 on login curl -sf http://localhost:8889/ -o /dev/null || fail "no server on the host"
	seen=$(printf %s "$get" | from_outside alice -W localhost:8889 login 2>&1) && fail "alice reaches the loopback of the host: $seen"
	from_outside alice -tt -R 7777:localhost:22 login 'exec sleep 300' >/dev/null 2>&1 </dev/null &
	helpers+=($!)
	poll 20 from_outside alice login 'ss -Hltn "sport = :7777" | grep -q .' || fail "no port for the client's side"
	[[ -z $(on login ss -Hltn 'sport = :7777') ]] || fail "a port for the client's side on the host"
	# Of a display that is not there a cookie is enough.
	# shellcheck disable=SC2016
	seen=$(as alice ctl env DISPLAY=:7 ssh -Y login 'n=${DISPLAY#localhost:}; ss -Hltn "sport = :$((6000 + ${n%.*}))" | wc -l' 2>&1)
	[[ $seen == *[12] && $seen != *error* ]] || fail "windows: $seen"
	as alice login sh -c 'echo "readlink /proc/self/ns/net >~/began" >.bashrc'
	seen=$(from_outside alice login 'readlink /proc/self/ns/net; cat began')
	as alice login rm -f .bashrc began
	[[ $(wc -l <<<"$seen") == 2 && $(sort -u <<<"$seen" | wc -l) == 1 ]] || fail "her shell's own file was read elsewhere: $seen"
	lose_clients
	poll 20 no_sessions || fail "after the sessions: $(left_on login)"
	as alice ctl ssh -N -L 9999:localhost:8888 login >/dev/null 2>&1 </dev/null &
	helpers+=($!)
	poll 20 on login test -e "/run/berthd/pods/login-$(settings id_of alice)-login" || fail "a connection without a session has no pod"
	lose_clients
	poll 20 no_sessions || fail "after a connection without a session: $(left_on login)"
	seen=$(printf %s "$get" | from_outside alice -W localhost:22 n1 2>&1) && fail "a connection to a node without a job: $seen"
}

# ssh_into_job: on a node, a session enters the pod of the user's newest job there.
ssh_into_job() {
	local seen
	seen=$(from_outside alice n1 hostname 2>&1) && fail "a session without a job: $seen"
	[[ $seen == *"you have no job on n1"* ]] || fail "without a job: $seen"
	job alice
	seen=$(from_outside alice n1 'readlink /proc/self/ns/net /proc/self/ns/pid; cat /proc/1/comm')
	[[ $seen == "$(step alice n1 sh -c 'readlink /proc/self/ns/net /proc/self/ns/pid')"$'\nberth-pod' ]] || fail "a session in a job: $seen"
	job alice
	[[ $(from_outside alice n1 readlink /proc/self/ns/net) == "$(step alice n1 readlink /proc/self/ns/net)" ]] || fail "not in the newest job"
	seen=$(from_outside bob n1 hostname 2>&1) && fail "bob gets into $seen"
	on ctl scancel "${jobs[alice]}"
	poll 20 gone alice || fail "the job does not end"
	[[ $(from_outside alice n1 cat /etc/resolv.conf) == *search* ]] || fail "not back in the older job"
}

# slurm_from_login: srun, salloc and sbatch work from a session, with input, output
# and exit codes.
slurm_from_login() {
	local seen
	seen=$(from_outside alice login 'echo in | srun -N2 -n2 --mem=100 sh -c "cat; hostname" | sort; srun -N1 -n1 --mem=100 sh -c "exit 6" 2>/dev/null; echo code $?
		salloc -Q -N2 --mem=100 srun -n2 hostname | sort; sbatch -Q -W -N1 -n1 --mem=100 -o /dev/null --wrap "srun true"; echo batch $?' </dev/null 2>&1)
	[[ $seen == $'in\nin\nn1\nn2\ncode 6\nn1\nn2\nbatch 0' ]] || fail "from a session: $seen"
	seen=$(from_outside alice -tt login srun -N1 -n1 --mem=100 --pty tty </dev/null 2>&1)
	[[ $seen == */dev/pts/* ]] || fail "a terminal from a session: $seen"
}

# lease_lost: berthd on the login host is away for longer than its lease. Sessions
# go on, and have their address again when it is back.
lease_lost() {
	local before
	stay alice
	before=$(session_address alice)
	on login sh -c 'kill -9 $(pgrep -x berthd)'
	wait "${daemons[login]}" 2>/dev/null
	poll 30 forgotten || fail "the lease does not end: $(etcdctl get --prefix /berth/site/1/networks/)"
	start login login run
	poll 20 holds "$before" || fail "etcd has $(etcdctl get --prefix /berth/site/1/networks/), want $before"
	[[ $(from_outside alice login 'ps -e -o args= | grep -c "[s]leep 300"') == 1 ]] || fail "the session has not gone on"
}
holds() { etcdctl get --prefix /berth/site/1/networks/ | grep -qF "\"address\":\"$1\""; }
