# shellcheck shell=bash
# Nodes take layers of images from each other.

# serve OPTION... starts a registry on the login host, with an image of several
# layers.
serve() {
	begin registry alice login /srv/ends/registry -listen :5000 "$@" team/busybox:1.37=/srv/ends/images/pulled.tar
	says registry 'registry on'
}

# sent prints for each layer the number of requests, the bytes sent, and its path.
sent() {
	awk '/^GET .*\/blobs\// { asked[$2]++ } /^sent .*\/blobs\// { sent[$3] += $2 }
		END { for (blob in asked) if (sent[blob] > 100000) print asked[blob], sent[blob], blob }' "$out/registry"
}

# Three nodes download one copy of each layer from the registry.
layers_shared() {
	local snapshotter run=0
	serve -layers 3 -bytes 4000000
	for snapshotter in overlayfs erofs; do
		span_berth "$snapshotter" --snapshotter "$snapshotter" --registry login:5000=http://login:5000 -- bash $here/pulled.sh 26000000
		ends "$snapshotter" 0
		says "$snapshotter" 'three pods, and taken from other nodes'
		run=$((run + 1))
		poll 5 layers_sent $run || fail "not one copy of four layers for each run: $(sent)"
	done
}
layers_sent() { # TIMES
	[[ $(sent | wc -l) == 4 && -z $(sent | awk -v times="$1" '$1 != times || $2 % times') ]]
}

# The node that downloads a layer dies in the middle. Another node continues at the
# same offset, and the first one takes the layer from it after its return. If the dead
# node owned the layer's digest, two nodes may continue.
layers_taken_over() {
	local victim layer
	serve -layers 1 -bytes 24000000 -rate 2000000
	span_berth a --registry login:5000=http://login:5000 -- bash $here/pulled.sh 24000000
	poll 60 some_everywhere || fail "not all nodes have some of the layer: $(tail -n 12 "$out/a" "$out/registry")"
	read -r layer victim < <(awk '/^GET .*\/blobs\// { by[$2] = $4 } /^sent/ { delete by[$3] } END { for (blob in by) print blob, by[blob] }' "$out/registry")
	victim=$("$bed" run login getent hosts "$victim" | awk '{ print $2 }')
	"$bed" run "$victim" pkill -KILL -f '^[^ ]*/containerd --config' || fail "no containerd on $victim"
	says a 'containerd ended'
	ends a 0
	says a 'three pods, and taken from other nodes'
	sent | awk -v layer="$layer" '$3 == layer && $1 > 1 && $2 < 49000000 { found = 1 } END { exit !found }' || fail "not taken over: $(sent)"
}
some_everywhere() {
	local host some
	for host in n1 n2 n3; do
		some=$("$bed" run $host find /tmp -path '*/ingest/*/data' -size +3M 2>/dev/null)
		[[ -n $some ]] || return 1
	done
}
