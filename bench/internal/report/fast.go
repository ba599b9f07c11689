package report

import (
	"slices"

	"berth.dev/berth/bench/internal/record"
)

// connecting lists the cases whose connections are counted where there is a fast
// path.
var connecting = []string{"bandwidth", "connections", "hpl", "latency", "mpi-init"} //nolint:gochecknoglobals // a constant

// uncounted stands for an unknown share.
const uncounted = -1

// shareOf returns the share of a trial's connections that the hosts made, in %. It returns
// uncounted if the system has the fast path, but the trial has no share. is is false for a
// trial without the fast path.
func (r *Report) shareOf(t *record.Trial) (share float64, is bool) {
	if i := slices.IndexFunc(t.Values, func(v record.Value) bool { return v.Name == record.Share }); i >= 0 {
		return t.Values[i].Value, true
	}
	return uncounted, r.fast[t.System] && slices.Contains(connecting, t.Kind)
}
