package campaign

import (
	"slices"
	"time"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
)

// clock estimates the duration of trials from earlier trials, or from the estimates of
// their case and driver. Its times are in seconds.
type clock struct {
	guess map[pair]float64
	seen  map[pair][]float64
}

func newClock(p *plan.Plan, known plan.Catalogue, before []record.Line) clock {
	c := clock{map[pair]float64{}, map[pair][]float64{}}
	for _, planned := range p.Cases {
		for _, s := range p.Systems {
			adds := known.Drivers[s.Driver].Seconds(s.Options)
			if p.Together && known.Drivers[s.Driver].Together {
				adds /= float64(casesOn(p, s.Name, planned.Link))
			}
			if known.Cases[planned.Kind].Images {
				adds += known.Drivers[s.Driver].Packing
			}
			c.guess[pair{s.Name, planned.Name}] = known.Cases[planned.Kind].Seconds(planned.Parameters) + adds
		}
	}
	for _, line := range before {
		if line.Trial != nil && line.Trial.Error == "" {
			c.took(line.Trial.ID(), line.Trial.Seconds)
		}
	}
	return c
}

// casesOn returns the number of a system's cases with a link.
func casesOn(p *plan.Plan, system, link string) (n int) {
	for _, c := range p.Cases {
		if c.Link == link && slices.Contains(c.Systems, system) {
			n++
		}
	}
	return max(n, 1)
}

// took adds the duration of a finished trial.
func (c clock) took(id record.ID, seconds float64) {
	at := pair{id.System, id.Case}
	c.seen[at] = append(c.seen[at], seconds)
}

// of estimates the total duration of the trials. It skips a trial if out returns true.
func (c clock) of(trials []record.ID, out func(record.ID) bool) time.Duration {
	total := 0.0
	for _, id := range trials {
		if out(id) {
			continue
		}
		at := pair{id.System, id.Case}
		if seen := slices.Sorted(slices.Values(c.seen[at])); len(seen) > 0 {
			total += seen[len(seen)/2]
			continue
		}
		total += c.guess[at]
	}
	return time.Duration(total * float64(time.Second))
}

// Estimate returns the number of a plan's remaining trials, and estimates their total
// duration.
func Estimate(p *plan.Plan, before []record.Line) (trials int, long time.Duration) {
	left := plan.Remaining(p.Schedule(), before)
	return len(left), newClock(p, Known(), before).of(left, func(record.ID) bool { return false })
}

// round rounds a duration for printing.
func round(d time.Duration) time.Duration { return d.Round(time.Second) }
