# shellcheck shell=bash
# Programs with their own use of networks and processes: MPI, X11, berth.

# mpi: programs of MPI find each other by PMIx over both nodes, and send by shared
# memory on a node and by TCP between nodes. They also do so in the hosts' network
# beside pods of another user: MPI must not take the hosts' addresses for pods as a
# way between hosts.
mpi() {
	local seen node program='from mpi4py import MPI
all = MPI.COMM_WORLD
data = bytearray(8 << 20) if all.rank else bytearray(b"x") * (8 << 20)
all.Bcast(data)
print(all.rank, all.size, all.allreduce(all.rank), data.count(b"x") >> 20, sep=",")'
	job bob
	for option in yes no; do
		seen=$(as alice login srun -Q -N2 -n4 --ntasks-per-node=2 --mem=400 --mpi=pmix --network-pod=$option /usr/bin/python3 -c "$program" 2>&1 | sort)
		[[ $seen == $'0,4,6,8\n1,4,6,8\n2,4,6,8\n3,4,6,8' ]] || fail "over two nodes with --network-pod=$option: $seen"
	done
	seen=$(as alice login env OMPI_MCA_btl=self,vader srun -Q -N1 -n2 --mem=400 --mpi=pmix /usr/bin/python3 -c "$program" 2>&1 | sort)
	[[ $seen == $'0,2,1,8\n1,2,1,8' ]] || fail "by shared memory alone: $seen"
	seen=$(as alice login env OMPI_MCA_btl=self,tcp srun -Q -N2 -n2 --mem=400 --mpi=pmix /usr/bin/python3 -c "$program" 2>&1 | sort)
	[[ $seen == $'0,2,1,8\n1,2,1,8' ]] || fail "by TCP alone: $seen"
	for node in n1 n2; do
		seen=$(on $node find /dev/shm -mindepth 1)
		[[ -z $seen ]] || fail "left of shared memory on $node: $seen"
	done
}

# mpirun: a batch script may also start programs with OpenMPI's own command, which
# uses srun to start a daemon on each other node.
mpirun() {
	local seen
	seen=$(as alice login sh -c 'sbatch -Q -W -N2 -n2 --mem=400 -o slurm.out --wrap "mpirun /usr/bin/python3 -c \"from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))\"" </dev/null; cat slurm.out' 2>&1)
	[[ $seen == $'2\n2' ]] || fail "mpirun: $seen"
}

# x11: programs of a job show their windows where srun was started, and terminals have
# its size. A server that prints a name stands for an X server.
x11() {
	local seen
	on login mkdir -p -m 1777 /tmp/.X11-unix
	"$bed" run --user alice login socat UNIX-LISTEN:/tmp/.X11-unix/X5,fork SYSTEM:'echo the X server' >/dev/null 2>&1 &
	helpers+=($!)
	poll 10 on login test -S /tmp/.X11-unix/X5 || fail "no server"
	as alice login xauth -q -f .Xauthority add :5 . "$(printf '%032d' 7)" 2>/dev/null || fail "make a cookie"
	# shellcheck disable=SC2016
	seen=$(as alice login env DISPLAY=:5 srun -Q --x11 -N1 -n1 --mem=100 sh -c 'cat /proc/1/comm; n=${DISPLAY#localhost:}; xauth list; socat -u "TCP:localhost:$((6000 + ${n%.*}))" -' 2>&1)
	if [[ $proctrack == linuxproc ]]; then
		[[ $seen == *"X11 forwarding not available"* ]] || fail "Slurm has no windows with linuxproc: $seen"
	else
		[[ $seen == berth-pod$'\n'*" MIT-MAGIC-COOKIE-1  $(printf '%032d' 7)"$'\nthe X server' ]] || fail "a program of X: $seen"
	fi
	seen=$(as alice login script -qec 'stty rows 33 cols 77; srun -Q --pty -N1 -n1 --mem=100 stty size' /dev/null </dev/null 2>&1 | tr -cd '0-9 ')
	[[ $seen == "33 77" ]] || fail "the size of a terminal: $seen"
	on login rm -rf /tmp/.X11-unix
	as alice login rm -f .Xauthority
}

# kubernetes: berth uses the job's network between its nodes, which find each other by
# their addresses in it. The user's other jobs and sessions reach published ports, by
# the job's name, and by the Service's name while it runs. Other users' jobs do not.
# From the login host berth is used as usual.
kubernetes() {
	local seen node
	as alice login sh -c 'cat >where.yaml' <<-'END'
		apiVersion: apps/v1
		kind: DaemonSet
		metadata: {name: where}
		spec:
		  selector: {matchLabels: {app: where}}
		  template:
		    metadata: {labels: {app: where}}
		    spec:
		      terminationGracePeriodSeconds: 0
		      containers:
		      - name: httpd
		        image: busybox:1.37
		        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
		        command: [sh, -c, 'mkdir /www; echo on $NODE >/www/index.html; exec httpd -f -p 8080 -h /www']
		---
		apiVersion: v1
		kind: Service
		metadata: {name: where}
		spec:
		  type: NodePort
		  selector: {app: where}
		  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
	END
	# A node's pods reach the other node's through the Service.
	as alice login sh -c 'cat >ask.sh' <<-'END'
		kubectl rollout status --timeout=120s daemonset/where || exit 1
		for pod in $(kubectl get pods -l app=where -o name); do
			# Which pod answers is chance: until both have, for half a minute.
			kubectl exec "$pod" -- sh -c '
				: >/seen
				end=$(($(date +%s) + 30))
				until [ "$(sort -u /seen | wc -l)" = 2 ] || [ "$(date +%s)" -gt "$end" ]; do
					wget -q -T 5 -O - http://where/ >>/seen || sleep 0.2
				done
				sort -u /seen' | xargs echo "$(kubectl get "$pod" -o 'jsonpath={.spec.nodeName}') reaches"
		done
		echo asked
		until [ -e enough ]; do sleep 0.2; done
	END
	jobs[alice]=$(in_berth sbatch --parsable -J cluster -N2 --mem=1500 -o berth.out --wrap 'srun berth run -f where.yaml --image /srv/images/busybox.tar --publish where.default=8080:30080 -- sh ask.sh; sleep 300')
	poll 240 in_output '^asked' || fail "no cluster: $(as alice login cat berth.out)"
	for node in n1 n2; do
		in_output "^$node reaches on n1 on n2$" || fail "from $node: $(as alice login grep reaches berth.out)"
		# Packets of pods travel between the addresses of this network.
		seen=$(root alice $node ss -Hutn | grep -oE '(10\.[0-9.]+):' | sort -u | xargs)
		[[ $seen == "$(pod_of alice n1): $(pod_of alice n2):" ]] || fail "connections on $node: $seen"
		seen=$(as alice login srun -Q -N1 -n1 --mem=100 sh -c 'for node in 0 1; do curl -s -m 20 http://pod$node.cluster:8080/; done')
		[[ $seen == "on n"[12]$'\n'"on n"[12] ]] || fail "another job of alice's: $seen"
	done
	in_output "port 30080 of the nodes at $where:8080" || fail "alice is not told the name: $(as alice login cat berth.out)"
	poll 30 served alice "$(pods_of alice)" || fail "the Service's name is $(where_is alice)"
	seen=$(as alice login srun -Q -N1 -n1 --mem=100 curl -s -m 20 "http://$where:8080/")
	[[ $seen == "on n"[12] ]] || fail "another job of alice's, by the Service's name: $seen"
	# The first session may start before the name is known there.
	poll 30 session_fetches alice || fail "a session of alice's: $(from_outside alice login curl -sS -m 10 "http://$where:8080/" 2>&1)"
	seen=$(as bob login srun -Q -N1 -n1 --mem=100 sh -c "curl -s -m 2 http://pod0.cluster:8080/; curl -s -m 2 http://$(pod_of alice n1):8080/; curl -s -m 2 http://$where:8080/" 2>&1)
	[[ $seen != *"on n"* ]] || fail "bob reaches alice's: $seen"
	served bob '' || fail "bob gets the Service's name: $(where_is bob)"
	seen=$(in_berth berth kubectl get nodes -o name | sort)
	[[ $seen == $'node/n1\nnode/n2' ]] || fail "from the login host: $seen"
	# The job continues and keeps its own name.
	as alice login touch enough
	poll 60 served alice '' || fail "after the run, the Service's name is $(where_is alice)"
	on ctl scancel "${jobs[alice]}"
	poll 30 gone alice || fail "the job does not end"
	seen=$(in_berth srun -Q -N1 -n1 --mem=1500 --network-pod=no berth run --publish web=8080:80 -- true 2>&1) && fail "there are names in the hosts' network"
	[[ $seen == *"name web: names are only for jobs with their own network"* ]] || fail "in the hosts' network: $seen"
	as alice login rm -f where.yaml ask.sh berth.out enough
}

# names_of_runs: the name of a run's service survives a restart of berthd, and is
# removed when the run is killed.
names_of_runs() {
	local node
	jobs[alice]=$(in_berth sbatch --parsable -J cluster -N2 --mem=1500 -o berth.out --wrap 'srun berth run --publish where.default=8080:30080 -- sleep 300; sleep 300')
	poll 20 everywhere alice || fail "no network for alice's job"
	poll 60 served alice "$(pods_of alice)" || fail "the name is $(where_is alice): $(as alice login cat berth.out)"
	for node in n1 n2; do
		on $node sh -c 'kill -9 $(pgrep -x berthd)'
		wait "${daemons[$node]}"
		start $node $node run
		poll 20 answers $node || fail "berthd does not come back"
		# When the stray file is gone, berthd has checked the files of runs.
		on $node touch /run/berthd/served/stray
		poll 20 on $node test ! -e /run/berthd/served/stray || fail "berthd does not look at runs on $node"
	done
	served alice "$(pods_of alice)" || fail "with another berthd, the name is $(where_is alice)"
	# The run on the other node continues.
	on n2 sh -c 'kill -9 $(pgrep -o -x berth)'
	poll 20 served alice "$(pod_of alice n1)" || fail "without the run on n2, the name is $(where_is alice)"
	on n1 sh -c 'kill -9 $(pgrep -o -x berth)'
	poll 20 served alice '' || fail "without the run, the name is $(where_is alice)"
	on ctl scancel "${jobs[alice]}"
	poll 30 gone alice || fail "the job does not end"
	# The files that a killed run leaves must be removed by somebody else.
	for node in n1 n2; do as alice $node /srv/berth/bin/berth cleanup >/dev/null; done
	as alice login rm -f berth.out
}
where=where.default.cluster.alice.bed
# where_is USER prints what a job of the user's resolves for the Service, and before
# that whether it resolves alice's job.
where_is() {
	# shellcheck disable=SC2016
	as "$1" login srun -Q -N1 -n1 --mem=100 sh -c 'getent ahostsv4 cluster.alice.bed >/dev/null && echo the job; getent ahostsv4 '$where' | sed -n "s/ *STREAM.*//p" | sort; echo asked' | xargs
}
served() { # USER ADDRESSES
	local job=
	[[ $1 != alice ]] || job='the job '
	[[ $(where_is "$1") == "$job${2:+$2 }asked" ]]
}
session_fetches() { [[ $(from_outside "$1" login curl -s -m 10 "http://$where:8080/") == "on n"[12] ]]; }
in_berth() { as alice login env PATH=/srv/berth/bin:/usr/bin:/bin "$@"; }
in_output() { as alice login grep -q "$1" berth.out 2>/dev/null; }
