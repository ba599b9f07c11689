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

# goes_on WHEN WHAT ADDRESS COUNT...: the other pod does so many operations. Their rate
# is for the reader; nothing depends on it.
goes_on() {
	[[ $failed == no ]] || return
	local when=$1 got
	shift
	got=$(kubectl exec other -- /ends/greedy work "$@" 2>&1)
	say "$when, $*: $got"
	[[ $got == "$3 done, 0 failed;"* ]] || fail "the other pod cannot go on"
}

hostile_has_no_instances() { kubectl exec hostile -- grep -q 'none left' /tmp/said; }
late_has_ended() { [[ $(kubectl get pod late -o 'jsonpath={.status.phase}') == Succeeded ]]; }

hostile() {
	local names=/var/tmp/berth-bed/$BED_NAME/etc/resolv.conf before pod dns echo over=/tmp/hostile-is-over
	[[ -e $stage/greedy ]] || {
		fail "no program greedy: make -C test/images"
		return
	}
	echo=$("$bed" run ctl ip -4 -o addr show dev eth0 | sed -n 's|.* inet \([^/]*\)/.*|\1|p'):7777
	"$bed" run ctl sh -c 'setsid /srv/ends/greedy serve "$1" >/dev/null 2>&1 </dev/null &' sh "$echo"
	node sh -c 'setsid /srv/ends/greedy silent 127.0.0.77:53 >/dev/null 2>&1 </dev/null &'
	before=$(<"$names")
	echo "nameserver 127.0.0.77" >"$names"
	berth a --fast-path off --image $image -- sh -c "kubectl apply -f $here/hostile.yaml &&
		kubectl wait --for=condition=Ready --timeout=60s pod/hostile pod/other && echo both run && until [ -e $over ]; do sleep 0.2; done"
	says a 'both run'
	[[ $failed == no ]] || return
	pod=$(kubectl get pod hostile -o 'jsonpath={.status.podIP}')
	dns=$(kubectl exec other -- sed -n 's/^nameserver //p' /etc/resolv.conf):53

	goes_on alone queries "$dns" 100 outside.test
	goes_on alone queries "$dns" 100 kubernetes.default.svc.cluster.local
	goes_on alone connections "$echo" 30

	takes queries "$dns" silent.test
	says a "dropped DNS queries of pod $pod: too many of them wait for the host's name servers"
	goes_on beside queries "$dns" 100 outside.test
	goes_on beside queries "$dns" 100 kubernetes.default.svc.cluster.local
	rests
	takes attempts 203.0.113.9:80
	says a "delayed connections to the outside: 1024 wait for an answer, most of them from pod $pod"
	goes_on beside connections "$echo" 30
	rests
	takes connections "$echo"
	says a "reset connection, too many are open: pod $pod has its share of 4096"
	goes_on beside connections "$echo" 30
	rests
	# Instances of inotify have no share for each pod, but a node without them goes on.
	takes instances
	[[ $failed == no ]] || return
	poll 60 hostile_has_no_instances || fail "the hostile pod gets ever more instances of inotify"
	kubectl run late --image=busybox:1.37 --restart=Never -- true || fail "no pod can be made"
	poll 60 late_has_ended || fail "no pod ends without instances of inotify: $(kubectl get pods)"
	rests

	node touch "$over"
	ends a 0
	node rm "$over"
	echo "$before" >"$names"
	"$bed" run ctl pkill greedy && node pkill greedy || fail "a server of the case has ended"
}
