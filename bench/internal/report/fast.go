package report

import (
	"slices"

	"berth.dev/berth/bench/internal/record"
)

// connecting are the cases whose connections are counted where there is a fast path.
var connecting = []string{"bandwidth", "connections", "hpl", "latency", "mpi-init"} //nolint:gochecknoglobals // a constant

// uncounted is in place of a share that nobody knows.
const uncounted = -1

// shareOf is which part of a trial's connections the hosts have made. Trials that
// have no fast path have none; where there should have been one, and nothing was
// counted, it is uncounted.
func (r *Report) shareOf(t *record.Trial) (share float64, is bool) {
	if i := slices.IndexFunc(t.Values, func(v record.Value) bool { return v.Name == record.Share }); i >= 0 {
		return t.Values[i].Value, true
	}
	return uncounted, r.fast[t.System] && slices.Contains(connecting, t.Kind)
}
