package netrole

import (
	"maps"

	"berth.dev/berth/internal/base/metrics"
	"berth.dev/berth/internal/network/egress"
	"berth.dev/berth/internal/network/overlay"
)

// counters returns the counters of the net role.
func counters(outside *egress.Counters, between *overlay.Overlay, sockets *podSwitch) map[string]uint64 {
	e := outside.Stats()
	counts := map[string]uint64{
		"berth_egress_to_pods_bytes_total":   e.BytesToPods,
		"berth_egress_from_pods_bytes_total": e.BytesFromPods,
		"berth_egress_refused_total":         e.Refused,
		"berth_egress_failed_total":          e.Failed,
		"berth_egress_dropped_packets_total": e.Dropped,
		"berth_egress_overflowed_total":      e.Overflowed,
	}
	for kind, n := range map[string][2]int64{
		"tcp": {e.Connections, e.ConnectionsOpen}, "udp": {e.Flows, e.FlowsOpen},
		"echo": {e.Echoes, e.EchoesOpen}, "dns": {e.Queries, e.QueriesOpen},
	} {
		counts[metrics.Count("berth_egress_connections_total", "protocol", kind)] = uint64(n[0])
		counts[metrics.Count("berth_egress_connections", "protocol", kind)] = uint64(max(0, n[1]))
	}
	if sockets != nil {
		for outcome, n := range sockets.Counters() {
			counts[metrics.Count(metrics.FastPath, "outcome", outcome)] = n
		}
	}
	if between == nil {
		return counts
	}
	o := between.Counters()
	maps.Copy(counts, map[string]uint64{
		"berth_overlay_sent_packets_total":     o.SentPackets,
		"berth_overlay_sent_bytes_total":       o.SentBytes,
		"berth_overlay_received_packets_total": o.ReceivedPackets,
		"berth_overlay_received_bytes_total":   o.ReceivedBytes,
		"berth_overlay_streamed_packets_total": o.Streamed,
		"berth_overlay_pieced_packets_total":   o.Fragmented,
		"berth_overlay_uncut_total":            o.Uncut,
	})
	for reason, n := range map[string]uint64{
		"foreign": o.Foreign, "replayed": o.Replayed, "spoofed": o.Spoofed, "stray": o.Stray,
		"malformed": o.Malformed, "refused": o.Refused, "unroutable": o.Unroutable, "unsent": o.Unsent,
	} {
		counts[metrics.Count("berth_overlay_dropped_packets_total", "reason", reason)] = n
	}
	return counts
}
