# shellcheck shell=bash
# Connections from the login host to running jobs. The idle time is short, so that
# tunnels close and nothing is left after a case.

# into NAME USER ARGS... begins a berth on the login host.
into() {
	local name=$1 user=$2
	shift 2
	begin "$name" "$user" login env BERTH_TUNNEL_IDLE="${idle:-2s}" berth "$@"
}

# asks CODE TEXT USER ARGS... runs such a berth, which must end with the code and
# print the text.
asks() {
	local code=$1 text=$2
	shift 2
	[[ $failed == no ]] || return
	into asked "$@"
	ends asked "$code"
	grep -qF -- "$text" "$out/asked" || fail "no '$text' from berth ${*:2}: $(tail -n 12 "$out/asked")"
}

# notebook NAME starts a job on two nodes with a web server, and waits for it.
notebook() {
	begin "$1" alice login srun -N2 --mem=1000 --job-name="$1" berth run -f $here/notebook.yaml --image $image
	poll 40 is_ready "$1" || fail "no notebook in $1: $(tail -n 12 "$out/$1")"
}
is_ready() {
	local id
	id=$("$bed" run --user alice login squeue --me -h -n "$1" -t R -o %A)
	[[ -n $id ]] && "$bed" run --user alice login env BERTH_TUNNEL_IDLE="${idle:-2s}" /srv/ends/dist/bin/berth kubectl "$id" get pod notebook 2>/dev/null | grep -q 1/1
}

job_named() { "$bed" run --user alice login squeue --me -h -n "$1" -o %A; }
on_login() { "$bed" run login "$@"; }
tunnels() { "$bed" run ctl squeue -h --steps -o %j | grep -c berth-tunnel; }
no_tunnel() { ! on_login pgrep -f 'tunnel-server|job-end' >/dev/null && [[ $(tunnels) == 0 ]]; }

# questions prints the number of requests to Slurm's controller for jobs or steps
# since sdiag --reset.
questions() { "$bed" run ctl sdiag | awk '/REQUEST_.*(JOB|STEP)/ { sub(".*count:", ""); n += $1 } END { print n + 0 }'; }

# Every command that connects to a job, through one step.
reach_in() {
	local i id name idle=30s
	notebook a
	id=$(job_named a)
	asks 0 notebook alice kubectl get pods
	for i in 1 2 3 4 5 6 7 8; do into "many$i" alice kubectl "$id" get nodes -o name; done
	for i in 1 2 3 4 5 6 7 8; do
		ends "many$i" 0
		says "many$i" node/n2
	done
	[[ $(tunnels) == 1 ]] || fail "$(tunnels) tunnels"
	asks 0 2/2 alice ls
	asks 0 'API server on n1' alice status "$id"
	asks 0 started alice logs notebook
	asks 0 '[pod/notebook/main] started' alice logs "$id"
	asks 7 '' alice kubectl exec notebook -- sh -c 'exit 7'
	begin c alice login sh -c 'echo copied >/tmp/c; BERTH_TUNNEL_IDLE=2s berth kubectl cp /tmp/c notebook:c && berth kubectl cp notebook:c /tmp/d && cat /tmp/d; rm -f /tmp/c /tmp/d'
	ends c 0
	says c copied
	asks 0 service/notebook alice shell -- kubectl get services -o name
	asks 3 "job $id" alice shell "$id" -- sh -c 'echo "job $BERTH_JOB"; exit 3'
	asks 0 /proc/ alice kubeconfig
	# Shell completion.
	poll 60 offers notebook kubectl "$id" get pods note || fail "no pod is offered: $(cat "$out/asked")"
	poll 60 offers svc/notebook open svc/n || fail "no Service is offered: $(cat "$out/asked")"
	poll 60 offers "$id" logs '' || fail "no job is offered: $(cat "$out/asked")"
	[[ $(tunnels) == 1 ]] || fail "$(tunnels) tunnels after all"
	# Commands do not contact Slurm's controller, not even commands that name no job.
	"$bed" run ctl sdiag --reset >/dev/null
	begin l alice login sh -c 'i=0; while [ $i -lt 40 ]; do berth kubectl get nodes -o name || exit; i=$((i + 1)); done'
	ends l 0
	(($(questions) <= 2)) || fail "Slurm was asked: $("$bed" run ctl sdiag | grep count:)"
	# The terminal inside follows the size of the user's terminal. Even the first size
	# arrives a moment after the program has started.
	begin t alice login script -qec 'tty; stty rows 33 cols 77; berth kubectl exec -it notebook -- sh -c "
		until [ \"\$(stty size 2>&1)\" = \"33 77\" ]; do sleep 0.1; done; echo sized
		until [ \"\$(stty size)\" = \"44 88\" ]; do sleep 0.1; done; echo resized"' /dev/null
	says t sized
	on_login stty -F "$(tr -d '\r' <"$out/t" | grep -m 1 ^/dev/)" rows 44 cols 88
	says t resized
	ends t 0
	into e alice kubectl exec notebook -- sh -c 'echo begun; sleep 600'
	says e begun
	into lf alice logs -f
	says lf started
	into w alice kubectl get pods -w
	says w notebook
	sleep 2 # what ends sooner asks nobody
	"$bed" run --user alice login scancel "$id"
	ends a 143 15 1 137
	ends e 69
	says e "job $id"
	for name in lf w; do # kubectl itself takes this for a good end
		ends $name 69
		says $name "job $id has ended (CANCELLED)"
	done
	poll 20 no_tunnel || fail "the tunnel outlives the job: $(on_login ps -ef | grep berth)"
}

# offers TEXT ARGS...: completion of the last word offers the text, within the time
# limit of completion.
offers() {
	into asked alice __complete "${@:2}"
	wait "${pids[asked]}"
	grep -qF -- "$1" "$out/asked"
}

# An unused tunnel closes. The next command removes what a killed command has left.
reach_idle() {
	local idle=2s
	notebook a
	asks 0 notebook alice kubectl get pods
	poll 20 no_tunnel || fail "the tunnel stays open"
	idle=30s
	asks 0 notebook alice kubectl get pods
	into f alice kubectl logs -f notebook
	says f started
	on_login pkill -KILL -f tunnel-server
	ends f 69 1
	asks 0 notebook alice kubectl get pods
	into g alice proxy
	says g 'export KUBECONFIG='
	"$bed" run --user alice login scancel "$(job_named a)"
	ends a 143 15 1 137
	ends g 69
	says g 'was lost: the cluster has ended'
	poll 20 no_tunnel || fail "the tunnel outlives the job"
}

# A notebook without a password can be used only by its owner.
reach_alone() {
	local port id
	notebook a
	id=$(job_named a)
	asks 66 'is not yours' bob kubectl "$id" get pods
	asks 66 'is not yours' bob down "$id"
	asks 66 'you have no job' bob kubectl get pods
	# Another user's socket in the place of a tunnel is not trusted.
	poll 20 no_tunnel || fail "the tunnel stays open"
	begin f bob login sh -c 'dir=/dev/shm/berth-$(id -u alice); mkdir -m 777 $dir && cd $dir || exit
		for n in 1 2 3 4 5 6 7 8 9; do mkdir -m 777 tunnel$n-'"$id"' && ln -s ../fake tunnel$n-'"$id"'/socket; done
		socat UNIX-LISTEN:fake,fork,mode=777 SYSTEM:"read -r q; echo \{\\\"Kubeconfig\\\":\\\"/etc/passwd\\\"\}; sleep 9" &
		echo stands; until [ -e stop ]; do sleep 0.2; done; kill $!; rm -rf $dir'
	says f stands
	asks 0 notebook alice kubectl "$id" get pods
	into o alice open svc/notebook
	says o http://localhost:
	port=$(sed -n 's|.*http://localhost:\([0-9]*\)/.*|\1|p' "$out/o")
	visits alice 0 "http://localhost:$port/"
	says v 'for alice alone'
	visits bob 7 52 56 "http://localhost:$port/"
	visits bob 7 52 56 "http://127.0.0.1:$port/"
	never_says v alone
	says o refused
	into p alice kubectl proxy --port=0
	says p 'Starting to serve'
	port=$(sed -n 's|.*127.0.0.1:\([0-9]*\)$|\1|p' "$out/p")
	visits alice 0 "http://127.0.0.1:$port/version"
	visits bob 7 52 56 "http://127.0.0.1:$port/version"
	# The listener of the tunnel itself.
	port=$(on_login ss -Hltnp | sed -n 's|.*127.0.0.1:\([0-9]*\) .*("berth".*|\1|p' | head -n 1)
	visits bob 7 35 52 56 "https://127.0.0.1:$port/version"
	kill "${pids[o]}" "${pids[p]}"
	"$bed" run --user alice login scancel "$id"
	ends a 143 15 1 137
	poll 20 no_tunnel || fail "the tunnel outlives the job"
	"$bed" run --user bob login sh -c 'touch /dev/shm/berth-$(id -u alice)/stop'
	ends f 0
}
# visits USER CODE... URL runs curl, whose exit code must be one of these.
visits() {
	begin v "$1" login curl -sSk -m 10 "${*: -1}"
	ends v "${@:2:$#-2}"
}

# Every mistake is reported with its reason and the remedy.
reach_mistakes() {
	local id
	asks 66 'there is no job 99999' alice kubectl 99999 get pods
	asks 66 'there is no job 99999' alice down 99999
	begin h alice login sbatch --parsable --hold -N1 --mem=100 --wrap 'sleep 100'
	ends h 0
	id=$(cat "$out/h")
	asks 69 "scontrol release $id" alice kubectl "$id" get pods
	asks 69 "scontrol release $id" alice down "$id"
	asks 69 'is held' alice status
	"$bed" run --user alice login scancel "$id"
	begin s alice login sbatch --parsable -o /dev/null -N1 --mem=100 --wrap 'sleep 100'
	ends s 0
	id=$(cat "$out/s")
	poll 20 runs "$id"
	asks 69 'no cluster of job' alice kubectl get pods
	begin n alice login env PATH=/srv/ends/dist/bin berth kubectl "$id" get pods
	ends n 69
	says n '"srun": executable file not found'
	begin w alice login env BERTH_REMOTE_PATH=/nowhere/berth berth kubectl "$id" get pods
	ends w 69
	says w 'export BERTH_REMOTE_PATH='
	"$bed" run ctl scontrol suspend "$id"
	asks 69 "scontrol resume $id" alice kubectl "$id" get pods
	"$bed" run ctl scontrol resume "$id"
	"$bed" run --user alice login scancel "$id"
	poll 20 ended_job "$id"
	asks 69 'has ended' alice kubectl "$id" get pods
	begin r alice login sbatch --parsable -o /dev/null --array=1-2 -N1 --mem=100 --wrap 'sleep 100'
	ends r 0
	id=$(cat "$out/r")
	poll 20 runs "${id}_1" && poll 20 runs "${id}_2"
	asks 64 "is an array: name one of ${id}_" alice kubectl "$id" get pods
	"$bed" run --user alice login scancel "$id"
}
runs() { "$bed" run ctl squeue -h -j "$1" -o %T | grep -q RUNNING; }
ended_job() { ! "$bed" run ctl squeue -h -j "$1" -o %T 2>/dev/null | grep -q .; }

# With several clusters, the user must select one. One is in an element of a job
# array, another is not on the first node of its job, and one is in a heterogeneous
# job.
reach_several() {
	local element idle=30s
	begin a alice login salloc -N2 --mem=900 --job-name=a srun -N1 --relative=1 --overlap berth run -f $here/notebook.yaml --image $image
	begin b alice login sbatch -W -o /dev/null --array=3 -N1 --mem=1000 --job-name=b --wrap \
		"PATH=$PATH:/srv/ends/dist/bin srun berth run -f $here/notebook.yaml --image $image"
	poll 40 is_ready a || fail "no notebook in a"
	poll 40 is_ready b || fail "no notebook in b"
	element=$("$bed" run --user alice login squeue --me -h -n b -o %i)
	[[ $element == *_3 ]] || fail "$element is no element of an array"
	asks 64 'name one of' alice kubectl get pods
	asks 0 1/1 alice ls
	asks 0 notebook alice kubectl "$element" get pods
	asks 0 "$element (b)" alice status "$element"
	asks 66 "there is no job ${element%_3}_4" alice status "${element%_3}_4"
	asks 0 'API server on n2' alice status "$(job_named a)"
	"$bed" run --user alice login scancel -u alice
	ends a 143 15 1 137
	ends b 0 143 15 1 137 # 0 where sbatch asks for the job between its end and the news of how it ended
	begin h alice login salloc -N1 --mem=1000 --job-name=h : -N1 --mem=1000 berth run -f $here/notebook.yaml --image $image
	poll 40 is_heterogeneous || fail "no job of two components: $(cat "$out/h")"
	element=$("$bed" run --user alice login squeue --me -h -o %i | grep +1)
	poll 40 reaches_notebook || fail "$element is not reached: $(tail -n 12 "$out/asked")"
	asks 0 notebook alice kubectl "${element%+1}" get pods
	asks 0 notebook alice kubectl get pods
	"$bed" run --user alice login scancel -u alice
	ends h 143 15 1 137
	poll 20 no_tunnel || fail "a tunnel outlives its job"
}
is_heterogeneous() { "$bed" run --user alice login squeue --me -h -t R -o %i | grep -q +1; }
reaches_notebook() {
	into asked alice kubectl "$element" get pod notebook
	wait "${pids[asked]}" && grep -q 1/1 "$out/asked"
}

# A crash of berth run while it uses the cluster of another job.
crash_run() {
	local id
	notebook a
	id=$(job_named a)
	into l alice run "$id" -f $here/loop.yaml
	says l started
	on_login pkill -SEGV -f '^berth run '
	ends l 134
	crashed l ', and what it has applied stays on the cluster: '
	asks 0 loop alice kubectl "$id" get pods
	"$bed" run --user alice login scancel "$id"
	ends a 143 15 1 137
}

# berth run on the login host uses the cluster of a job. Without a job it is refused,
# because no cluster is started on a login host.
reach_run() {
	local id idle=30s site=/var/tmp/berth-bed/$BED_NAME/etc/berth/config.yaml line refused='is in no allocation, so no cluster is started here'
	asks 78 "$refused" alice run -- true
	asks 78 '--here starts one on this host' alice up
	begin n alice n1 env BERTH_HERE=false berth run -- true # a compute node is no other place
	ends n 78
	begin h alice login berth run --here -- sh -c 'echo on $(hostname)'
	ends h 0
	says h 'on login'
	printf 'forbid:\n- here\n' >"$site"
	asks 78 'the site forbids --here (/etc/berth/config.yaml:2)' alice run --here -- true
	begin f alice login env BERTH_HERE=true BERTH_CONFIG=/dev/null berth up
	ends f 78
	never_says f 'all the same'
	: >"$site"
	# On the cluster of berth run: it adds objects, and nothing else.
	notebook a
	id=$(job_named a)
	asks 78 "your clusters that run: $id (a, 2 nodes)" alice run -- true
	asks 0 started alice run "$id" -f $here/exit.yaml
	begin e alice login sh -c "sed 's/\"0\"/\"5\"/' $here/exit.yaml | BERTH_JOB=$id BERTH_TUNNEL_IDLE=2s berth run -f -"
	ends e 5
	asks 0 'No resources' alice kubectl "$id" get jobs
	asks 69 'takes neither commands nor images of other runs' alice run "$id" -- true
	asks 64 'configures a new cluster' alice run "$id" --ha -f $here/exit.yaml
	begin m alice login env BERTH_JOB=99999 berth run -f $here/exit.yaml
	ends m 66
	says m 'BERTH_JOB names it'
	"$bed" run --user alice login scancel "$id"
	ends a 143 15 1 137
	# On the cluster of berth up: a command on its head, images, and an orderly end.
	begin u alice login salloc -N2 --mem=1500 --job-name=u bash -c 'berth up && echo stands && until [ -e ended ]; do sleep 0.1; done; rm ended'
	says u stands
	id=$(job_named u)
	begin c alice login sh -c "echo given | BERTH_TUNNEL_IDLE=2s berth run $id -- sh -c 'cat; hostname; kubectl get nodes -o name; exit 7'"
	ends c 7
	for line in given n1 node/n2; do says c $line; done
	asks 66 'neither a tar archive nor' alice run "$id" --image $here/exit.yaml -f $here/exit.yaml
	into l alice run "$id" --image $image -f $here/loop.yaml
	says l started
	on_login pkill -TERM -f '^berth run '
	ends l 143
	says l 'ended in order'
	asks 0 'No resources' alice kubectl "$id" get pods
	"$bed" run --user alice login touch ended
	ends u 0
	poll 40 no_tunnel || fail "a tunnel outlives its job"
}

# An ssh session that pam_slurm_adopt puts into a job is in that job's allocation, although
# it has only the job's number. Outside the job's control groups, berth run is refused.
adopted_session() {
	local id etc=/var/tmp/berth-bed/$BED_NAME/etc server session='echo adopted by $(grep -o "job_[0-9]*/step_extern" /proc/self/cgroup | sort -u), with $(env | grep -c ^SLURM_) variable
		exec env BERTH_HERE=false /srv/ends/dist/bin/berth run -q -- sh -c "echo cluster on \$(hostname): \$(kubectl get nodes -o name)"'
	start_sshd
	begin d alice login ssh n1 hostname
	ends d 255
	says d 'you have no active jobs on this node'
	begin j alice login srun -N1 --mem=1500 sh -c 'echo begun; exec sleep 200'
	says j begun
	id=$(job)
	begin o alice n1 env BERTH_HERE=false berth run -- true
	ends o 78
	begin s alice login ssh n1 "$session"
	ends s 0
	says s "adopted by job_$id/step_extern, with 1 variable"
	says s 'cluster on n1: node/n1'
	"$bed" run --user alice login scancel "$id"
	ends j 143 15 1 137
	node pkill -o -x sshd
	wait "$server"
	node rmdir /run/sshd
	"$bed" run --user alice login rm -r .ssh
}

# start_sshd runs a real sshd on n1, which asks Slurm about users. It sets server to the
# process to wait for.
start_sshd() {
	mkdir -p "$etc/pam.d" "$etc/sshd"
	printf '%s\n' 'auth required pam_deny.so' 'account required pam_slurm_adopt.so nodename=n1' 'session required pam_permit.so' >"$etc/pam.d/sshd"
	printf '%s\n' 'HostKey /etc/sshd/host' 'PidFile none' 'UsePAM yes' >"$etc/sshd/config"
	[[ -e $etc/sshd/host ]] || ssh-keygen -q -t ed25519 -N '' -f "$etc/sshd/host" || fail "make a key"
	# At this level ssh shows what PAM says before the session.
	"$bed" run --user alice login sh -c 'mkdir -m 700 .ssh && ssh-keygen -q -t ed25519 -N "" -f .ssh/id_ed25519 && cp .ssh/id_ed25519.pub .ssh/authorized_keys &&
		printf "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel INFO\nBatchMode yes\n" >.ssh/config' || fail "make a key of alice"
	node mkdir -p /run/sshd
	"$bed" run n1 /usr/sbin/sshd -D -e -f /etc/sshd/config >"$out/sshd" 2>&1 </dev/null &
	server=$!
	poll 10 listens_for_ssh || fail "sshd does not start: $(cat "$out/sshd")"
}
listens_for_ssh() { node sh -c 'ss -Hltn "sport = :22" | grep -q .'; }
