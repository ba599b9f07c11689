package report

import (
	"cmp"
	"slices"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/bench/internal/record"
)

// connecting are the cases whose connections are counted where there is a fast path.
var connecting = []string{"bandwidth", "connections", "hpl", "latency", "mpi-init"} //nolint:gochecknoglobals // a constant

// uncounted is in place of a share that nobody knows.
const uncounted = -1

// fastSystems are those of a plan that have the fast path.
func fastSystems(text string) (map[string]bool, error) {
	var plan struct {
		Systems []struct {
			Name, Driver string
			Options      struct{ Network string }
		}
	}
	if err := yaml.Unmarshal([]byte(text), &plan); err != nil {
		return nil, err
	}
	fast := map[string]bool{}
	for _, s := range plan.Systems {
		if cmp.Or(s.Driver, s.Name) == "berth" && s.Options.Network == "fast" {
			fast[s.Name] = true
		}
	}
	return fast, nil
}

// shareOf is which part of a trial's connections the hosts have made. Trials that
// have no fast path have none; where there should have been one, and nothing was
// counted, it is uncounted.
func (r *Report) shareOf(t *record.Trial) (share float64, is bool) {
	if i := slices.IndexFunc(t.Values, func(v record.Value) bool { return v.Name == record.Share }); i >= 0 {
		return t.Values[i].Value, true
	}
	return uncounted, r.fast[t.System] && slices.Contains(connecting, t.Kind)
}
