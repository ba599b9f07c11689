# shellcheck shell=bash
# A pod that takes all it gets of what the pods of a node share. The user reads which
# pod it is, and another pod goes on.

# takes WHAT...: the hostile pod starts to take it, and goes on.
takes() {
	[[ $failed == no ]] || return
	kubectl exec hostile -- sh -c '/ends/greedy take "$@" >/tmp/said 2>&1 </dev/null &' sh "$@" ||
		fail "the hostile pod cannot take $*"
}
# rests: the hostile pod gives all back.
rests() { [[ $failed == yes ]] || kubectl exec hostile -- killall greedy || fail "the hostile pod took nothing any more"; }

# goes_on WORK...: the other pod works, and none of it fails. rate is its operations a
# second.
goes_on() {
	[[ $failed == no ]] || return
	local got
	got=$(kubectl exec other -- /ends/greedy work "$@" 2>&1)
	[[ $got == "$3 done, 0 failed; "* ]] || fail "the other pod cannot go on with $*: $got"
	rate=${got##*; } rate=${rate% a second}
}

# used prints the processor time of the hostile pod and of the roles that serve it, in
# hundredths of a second, and then the time of the machine.
used() {
	node sh -c 'cat $(pgrep -f "^(/ends/greedy take|berth net-role|[^ ]*/coredns -conf)" | sed "s|.*|/proc/&/stat|") 2>/dev/null; cat /proc/uptime' |
		awk 'NF > 2 { sub(/.*\) /, ""); used += $12 + $13 } NF == 2 { print used, int(100 * $1) }'
}

# compare TAKEN WORK...: the other pod works beside the hostile one, and then beside one
# that only uses as much processor time, or takes $control; three times, because others use
# the machine. The rates are for the reader, and nothing depends on them. PORT stands for a new port in each
# round: a host has 28,000 connections to one, and remembers a closed one for a minute.
compare() {
	local taken=$1 rate round beside=() alike=() spent=() from to
	shift
	for round in 1 2 3; do
		[[ $failed == no ]] || return
		# shellcheck disable=SC2086
		takes ${taken//PORT/777$round}
		read -ra from < <(used)
		goes_on "${@//PORT/777$round}"
		read -ra to < <(used)
		rests
		beside+=("$rate")
		spent+=($((100 * (to[0] - from[0]) / (to[1] - from[1]))))
		# shellcheck disable=SC2086
		takes ${control:-processors $((spent[-1] > 0 ? spent[-1] : 1))}
		goes_on "${@//PORT/777$round}"
		rests
		alike+=("$rate")
	done
	[[ $failed == no ]] || return
	say "$*, beside '$taken': $(median "${beside[@]}") a second; beside ${control:-as much processor time}: $(median "${alike[@]}")"
	say "   (${beside[*]}; ${alike[*]}; with ${spent[*]} % of a processor)"
}
median() { printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"; }

hostile_gets_no_more() { kubectl exec hostile -- grep -q 'none left' /tmp/said; }
has_ended() { [[ $(kubectl get pod "$1" -o 'jsonpath={.status.phase}') == Succeeded ]]; }

# starts POD: a pod can be made, and ends.
starts() {
	[[ $failed == no ]] || return
	kubectl run "$1" --image=busybox:1.37 --restart=Never -- true || fail "no pod can be made"
	poll 100 has_ended "$1" || fail "no pod ends without instances of inotify: $(kubectl get pods)"
}

hostile() {
	local names=/var/tmp/berth-bed/$BED_NAME/etc/resolv.conf inside=kubernetes.default.svc.cluster.local before pod dns echo port over=/tmp/hostile-is-over
	[[ -e $stage/greedy ]] || {
		fail "no program greedy: make -C test/images"
		return
	}
	echo=$("$bed" run ctl ip -4 -o addr show dev eth0 | sed -n 's|.* inet \([^/]*\)/.*|\1|p')
	for port in 1 2 3; do
		"$bed" run ctl sh -c 'setsid /srv/ends/greedy serve "$1" >/dev/null 2>&1 </dev/null &' sh "$echo:777$port"
	done
	node sh -c 'setsid /srv/ends/greedy silent 127.0.0.77:53 >/dev/null 2>&1 </dev/null &'
	before=$(<"$names")
	echo "nameserver 127.0.0.77" >"$names"
	berth a --fast-path off --image $image -- sh -c "kubectl apply -f $here/hostile.yaml &&
		kubectl wait --for=condition=Ready --timeout=60s pod/hostile pod/other && echo both run && until [ -e $over ]; do sleep 0.2; done"
	says a 'both run'
	[[ $failed == no ]] || return
	pod=$(kubectl get pod hostile -o 'jsonpath={.status.podIP}')
	dns=$(kubectl exec other -- sed -n 's/^nameserver //p' /etc/resolv.conf):53

	takes queries "$dns" silent.test
	says a "dropped DNS queries of pod $pod: too many of them wait for the host's name servers"
	rests
	compare "queries $dns silent.test" queries "$dns" 500 outside.test
	compare "queries $dns silent.test" queries "$dns" 1000 $inside
	compare "queries $dns $inside" queries "$dns" 1000 $inside
	compare "queries $dns $inside" queries "$dns" 500 outside.test
	takes flood "$dns" $inside
	says a "dropped DNS queries of pod $pod: it sent more than 20000 in a second"
	rests
	# Its time is the kernel's, and counts for no process.
	control="flood 127.0.0.1:9 $inside" compare "flood $dns $inside" queries "$dns" 1000 $inside
	takes streams "$dns"
	poll 60 hostile_gets_no_more || fail "the hostile pod gets ever more connections to the name server"
	says a "reset connections of pod $pod to the name server: it has 128 already"
	rests
	compare "streams $dns" queries "$dns" 1000 $inside
	takes attempts 203.0.113.9:80
	says a "delayed connections to the outside: 1024 wait for an answer, most of them from pod $pod"
	rests
	compare "attempts 203.0.113.9:80" connections "$echo:PORT" 300
	takes connections "$echo:7771"
	says a "reset connection, too many are open: pod $pod has its share of 4096"
	rests
	compare "connections $echo:PORT" connections "$echo:PORT" 300
	# Instances of inotify have no share for each pod, but a node without them goes on.
	takes instances
	[[ $failed == no ]] || return
	poll 60 hostile_gets_no_more || fail "the hostile pod gets ever more instances of inotify"
	starts late
	# What a node needs after a start takes none.
	signal KILL containerd node
	says a 'containerd ended: killed by signal 9 (killed); starting it again'
	says a 'node ended: killed by signal 9 (killed); starting it again'
	starts later
	rests

	node touch "$over"
	ends a 0
	node rm "$over"
	echo "$before" >"$names"
	"$bed" run ctl pkill greedy && node pkill greedy || fail "a server of the case has ended"
}
