# shellcheck shell=bash
# Sessions of users, with a real sshd.

# from_outside USER HOST [COMMAND...] runs ssh from ctl, where nobody has a pod.
from_outside() {
	local user=$1
	shift
	as "$user" ctl ssh "$@"
}

# stay USER starts a session on the login host that lasts as long as its client.
# Without a terminal sshd would keep its program running.
stay() {
	rm -f "$out/stay"
	from_outside "$1" -tt login 'echo begun; exec sleep 300' >"$out/stay" 2>&1 </dev/null &
	helpers+=($!)
	poll 20 grep -q begun "$out/stay" || fail "no session of $1: $(<"$out/stay")"
}

# Kill all clients on ctl, which no other user uses.
lose_clients() { on ctl sh -c 'kill -9 $(pgrep -x ssh)' 2>/dev/null; }

# session_address USER prints the address that the login host has recorded, whatever
# etcd holds.
session_address() { on login cat "/run/berthd/pods/login-$(settings id_of "$1")-login" | sed 's/.*"address":"//; s/".*//'; }

no_sessions() { [[ -z $(left_on login) && -z $(etcdctl get --prefix /berth/site/1/networks/) ]]; }

# sessions: all sessions of a user on a login host are in one pod. The first one
# creates it, and it ends with the last. Other features of ssh work in it.
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
	# A lost client ends its session if that has a terminal.
	lose_clients
	poll 20 no_sessions || fail "after all sessions: $(left_on login)"
}

# sessions_apart: a web server on the loopback of one user's session, such as a
# notebook, is reached only by the user's other sessions.
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

# forwards: what sshd forwards for a user starts and ends in the user's pod, and so does
# what the user's shell starts before berth-session. A connection without a session uses the pod
# too.
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
	# For a display that does not exist a cookie is enough.
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

# session_images: if the site has an image for sessions, sessions see its files, on login
# hosts and in jobs. They have the user's rights and cannot gain any. Copying files,
# terminals and Slurm's network work as without an image.
session_images() {
	local seen node image=/srv/site/session-image
	session_image "$stage/session-image"
	(configuration && printf 'sessions: {image: %s, mounts: [/home, /srv/site]}\n' "$image") >"$(settings eval 'echo $state')/etc/berth/site.yaml"
	restart login
	restart n1
	# shellcheck disable=SC2016
	seen=$(from_outside alice login 'cat /etc/os-release /proc/1/comm; pwd; id -un; ip -o link | grep -vc ": lo:"; grep -c 10.200.0.1 /etc/resolv.conf; exit 7' 2>"$out/said")
	[[ $? -eq 7 && $seen == $'image of sessions\nberth-pod\n/home/alice\nalice\n1\n1' ]] || fail "a session: $seen"
	[[ $(<"$out/said") == "berth: the image of sessions has no /bin/bash: this is /bin/sh" ]] || fail "another shell: $(<"$out/said")"
	seen=$(from_outside alice login 'grep -E "^(Uid|NoNewPrivs|CapPrm|CapEff)" /proc/self/status; /srv/site/berth-session 2>&1; test -e /etc/shadow || echo none' 2>/dev/null | xargs)
	[[ $seen == *"Uid: $(yes "$(settings id_of alice)" | head -n 4 | xargs) CapPrm: 0000000000000000 CapEff: 0000000000000000 NoNewPrivs: 1 "*"no session on this host: berth-session needs the rights of root"*" none" ]] || fail "rights: $seen"
	seen=$(from_outside alice -tt login 'cat /etc/os-release; test -t 0 && stty size && tty' </dev/null 2>&1 | tr -d '\r')
	[[ $seen == *"image of sessions"*"/dev/pts/"* ]] || fail "a terminal: $seen"
	# Busybox's shell discards input that is typed before it reads, and its wait may
	# wait forever, on a host too.
	seen=$({ sleep 2; printf 'sleep 200 &\nkill %%1; echo "shell $0"; exit 5\n'; } | from_outside alice -tt login 2>&1 | tr -d '\r')
	[[ $seen == *"shell -sh"* && $seen != *"job control"* ]] || fail "a shell: $seen"
	seen=$(as alice ctl sh -c 'echo content >file; scp -q file login:copied 2>/dev/null; echo "get copied back" | sftp -q -b - login >/dev/null 2>&1; cat copied back; rm -f file copied back')
	[[ $seen == $'content\ncontent' ]] || fail "scp and sftp: $seen"
	seen=$(from_outside alice n1 cat /etc/os-release 2>&1) && fail "a session without a job: $seen"
	job alice
	seen=$(from_outside alice n1 'cat /etc/os-release; readlink /proc/self/ns/net' 2>/dev/null)
	[[ $seen == $'image of sessions\n'"$(step alice n1 readlink /proc/self/ns/net)" ]] || fail "a session in a job: $seen"
	chmod 700 "$stage/session-image"
	seen=$(from_outside alice login hostname 2>&1) && fail "a session in an image that is not hers: $seen"
	[[ $seen == *"no session on this host: mount /proc in the directory $image: Permission denied"* ]] || fail "not hers: $seen"
	chmod 755 "$stage/session-image"
	rmdir "$stage/session-image/sys"
	seen=$(from_outside alice login hostname 2>&1) && fail "a session without /sys: $seen"
	[[ $seen == *"no session on this host: mount /sys in the directory $image: No such file or directory: mkdir"* ]] || fail "without /sys: $seen"
	configuration >"$(settings eval 'echo $state')/etc/berth/site.yaml"
	restart login
	restart n1
	seen=$(from_outside alice login cat /etc/os-release)
	[[ $seen == "$(on login cat /etc/os-release)" ]] || fail "without an image again: $seen"
}

# restart HOST restarts berthd with the current configuration.
restart() {
	on "$1" sh -c 'kill -9 $(pgrep -f "[b]erthd run")'
	wait "${daemons[$1]}" 2>/dev/null
	start "$1" "$1" run
	poll 20 answers "$1" || fail "berthd on $1 does not come back"
}

# session_image DIR makes an image of busybox and the sftp server with its libraries.
session_image() {
	local name server=/usr/lib/openssh/sftp-server
	mkdir -p "$1"/{bin,proc,sys,dev,tmp,etc,home,srv/site,usr/lib/openssh}
	cp /bin/busybox "$1/bin/" && cp "$server" "$1$server" || fail "make an image"
	for name in sh cat id ip grep readlink sleep stty tty hostname kill; do ln -sf busybox "$1/bin/$name"; done
	ldd "$server" | grep -oE '/[^ ]+' | while read -r name; do mkdir -p "$1${name%/*}" && cp -L "$name" "$1$name"; done
	echo "image of sessions" >"$1/etc/os-release"
	touch "$1"/etc/{resolv.conf,passwd,group}
	chmod -R a+rX "$1"
}

# ssh_into_job: on a node, a session enters the pod of the user's newest job there.
ssh_into_job() {
	local seen
	seen=$(from_outside alice n1 hostname 2>&1) && fail "a session without a job: $seen"
	[[ $seen == *"you have no job on n1"* ]] || fail "without a job: $seen"
	from_outside alice n1 hostname 2>/dev/null
	[[ $? -eq 254 ]] || fail "the exit code where PAM has refused a session"
	job alice
	seen=$(from_outside alice n1 'readlink /proc/self/ns/net /proc/self/ns/pid; cat /proc/1/comm')
	[[ $seen == "$(step alice n1 sh -c 'readlink /proc/self/ns/net /proc/self/ns/pid')"$'\nberth-pod' ]] || fail "a session in a job: $seen"
	# The ports of a persistent connection, as by ControlMaster, stay where it began.
	as alice ctl ssh -fNM -S .ssh/kept n1 >/dev/null 2>&1 </dev/null || fail "no connection to keep"
	seen=$(as alice ctl ssh -S .ssh/kept n1 true 2>&1)
	[[ -z $seen ]] || fail "a session where its connection began: $seen"
	job alice
	[[ $(from_outside alice n1 readlink /proc/self/ns/net) == "$(step alice n1 readlink /proc/self/ns/net)" ]] || fail "not in the newest job"
	# Its streams come to the client in either order.
	seen=$(as alice ctl ssh -S .ssh/kept n1 readlink /proc/self/ns/net 2>"$out/elsewhere")
	[[ $seen == "$(step alice n1 readlink /proc/self/ns/net)" && $(<"$out/elsewhere") == "berth: this session is in another pod than"* ]] || fail "a session elsewhere than its connection began: $seen $(<"$out/elsewhere")"
	as alice ctl ssh -S .ssh/kept -O exit n1 2>/dev/null || fail "the connection does not end"
	seen=$(from_outside bob n1 hostname 2>&1) && fail "bob gets into $seen"
	on ctl scancel "${jobs[alice]}"
	poll 20 gone alice || fail "the job does not end"
	[[ $(from_outside alice n1 cat /etc/resolv.conf) == *search* ]] || fail "not back in the older job"
}

# adopted: with pam_slurm_adopt a session on a node is in the pod and in the control
# groups of the job that pam_slurm_adopt has chosen, where berth by itself takes the
# newest. The session ends with that job, and so does a connection that only forwards.
# Users without a job there are refused. Without control groups Slurm adopts nothing:
# sessions enter the newest job and end with its pod, and a connection that only
# forwards stays.
adopted() {
	local seen id older without groups=/sys/fs/cgroup/memory/slurm_n1 stay=0 pam
	[[ $proctrack == cgroup ]] || stay=1
	pam=$(settings eval 'echo $state')/etc/pam.d/sshd
	cp "$pam" "$out/pam"
	# Write in place: hosts would not see a file that replaces it.
	sed 's/^account .*/account required pam_slurm_adopt.so nodename=n1/' "$out/pam" >"$pam"
	# Only at that level ssh shows PAM's messages from before the session.
	seen=$(from_outside bob -o LogLevel=INFO n1 hostname 2>&1) && fail "a session without a job: $seen"
	[[ $seen == *"Access denied by pam_slurm_adopt: you have no active jobs on this node"* ]] || fail "bob reads: $seen"
	job alice
	[[ $(from_outside alice n1 "$where_am_i" 2>&1) == "$(job_at alice)" ]] || fail "beside one job: $(from_outside alice n1 "$where_am_i" 2>&1), want $(job_at alice)"
	step alice n1 python3 -m http.server --bind 127.0.0.1 8888 >/dev/null 2>&1 &
	helpers+=($!)
	poll 20 listens alice n1 8888 || fail "no server in the job"
	seen=$(printf 'GET / HTTP/1.0\r\n\r\n' | from_outside alice -W localhost:8888 n1 2>&1)
	[[ $seen == "HTTP/1.0 200"* ]] || fail "the job's port is not forwarded: $seen"
	id=${jobs[alice]} older=$(job_at alice)
	job alice
	if on n1 test -d "$groups"; then
		# It chooses the job whose control group has changed last.
		on n1 touch -d '+1 hour' "$groups/uid_$(settings id_of alice)/job_$id"
	else
		id=${jobs[alice]} older=$(job_at alice)
	fi
	[[ $(from_outside alice n1 "$where_am_i" 2>&1) == "$older" ]] || fail "beside two jobs: $(from_outside alice n1 "$where_am_i" 2>&1), want $older"
	if on n1 test -d "$groups"; then
		without=$(as alice login sbatch --parsable -N1 -w n1 --mem=100 --network-pod=no -o /dev/null --wrap 'sleep 300')
		poll 20 on n1 test -e "/run/berthd/declined/$without" || fail "berthd does not know of job $without"
		# The control group of its last step changes the job's.
		poll 20 on n1 test -d "$groups/uid_$(settings id_of alice)/job_$without/step_batch/task_0" || fail "job $without does not begin"
		on n1 touch -d '+2 hours' "$groups/uid_$(settings id_of alice)/job_$without"
		seen=$(from_outside alice n1 hostname 2>&1) && fail "a session in a job without a network: $seen"
		[[ $seen == *"job $without, which this session belongs to, has no network"* ]] || fail "alice reads: $seen"
		on ctl scancel "$without"
		poll 20 on n1 sh -c '! test -e "$1"' sh "/run/berthd/declined/$without" || fail "job $without does not end"
	fi
	from_outside alice -tt n1 'echo begun; exec sleep 300' >"$out/adopted" 2>&1 </dev/null &
	helpers+=($!)
	from_outside alice -N -L 9999:localhost:8888 n1 >/dev/null 2>&1 </dev/null &
	helpers+=($!)
	poll 20 grep -q begun "$out/adopted" || fail "no session: $(<"$out/adopted")"
	poll 20 eval '[[ $(connections) == 2 ]]' || fail "connections of alice: $(connections)"
	on ctl scancel "$id"
	poll 20 eval '[[ $(connections) == "$stay" ]]' || fail "after the job: $(on n1 ps -e -o pid,args)"
	cat "$out/pam" >"$pam"
}
# Prints the job whose control groups a process is in, and its network.
where_am_i='echo $(grep -o "job_[0-9]*/step_extern" /proc/self/cgroup | sort -u | tr -dc "0-9\n") $(readlink /proc/self/ns/net)'
job_at() { echo $([[ $proctrack != cgroup ]] || echo "${jobs[$1]}") $(step "$1" n1 readlink /proc/self/ns/net); }
# connections counts sshd's connections of alice on n1: each has a process of root.
connections() { on n1 pgrep -fc '^sshd: alice \[priv\]'; }

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
# continue, and have their address again when it is back.
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
