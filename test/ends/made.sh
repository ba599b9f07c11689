# shellcheck shell=bash
# Counts the connections that the hosts make for pods.

# counted OUTCOME prints the number of connections with that outcome, on all nodes.
counted() { berth metrics | awk -v outcome="outcome=\"$1\"" 'index($0, "berth_fastpath_total") == 1 && index($0, outcome) { n += $NF } END { print n + 0 }'; }
# settled OUTCOME is the same, once the number no longer changes: the net role reports
# it once a second.
settled() {
	local now last=
	until now=$(counted "$1") && [[ $now == "$last" ]]; do
		last=$now
		sleep 1.5
	done
	echo "$now"
}
# tardy prints the number of connections that took the overlay, because a busy node
# did not answer in time.
tardy() { echo $(($(counted 'overlay: the node did not answer in time') + $(counted 'overlay: no connection to the node'))); }
# adds N CMD...: while the command runs, the hosts make N connections. Nothing else may
# connect meanwhile.
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
