# shellcheck shell=bash
# How many connections of pods the hosts have made.

# counted OUTCOME: how often that was counted, on all nodes.
counted() { berth metrics | awk -v outcome="outcome=\"$1\"" 'index($0, "berth_fastpath_total") == 1 && index($0, outcome) { n += $NF } END { print n + 0 }'; }
# settled OUTCOME: the same, when it does not change any more: the net role says it once a second.
settled() {
	local now last=
	until now=$(counted "$1") && [[ $now == "$last" ]]; do
		last=$now
		sleep 1.5
	done
	echo "$now"
}
# tardy: connections that a node was too busy for, whose client would not wait.
tardy() { echo $(($(counted 'overlay: the node did not answer in time') + $(counted 'overlay: no connection to the node'))); }
# adds N CMD...: the command has N more connections made by the hosts. Nobody else has any made meanwhile.
known=
adds() {
	local n=$1 before=${known:-$(settled connected)} late
	late=$(tardy)
	shift
	"$@"
	known=$(settled connected)
	late=$(($(tardy) - late))
	((known - before + late == n && late <= n / 2)) || {
		echo "$*: the hosts made $((known - before)) connections, want $n" >&2
		berth metrics | grep '^berth_fastpath' >&2
		return 1
	}
}
