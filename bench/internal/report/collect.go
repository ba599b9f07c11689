package report

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"berth.dev/berth/bench/internal/record"
)

type key struct{ caseName, figure, system string }

// underLink is a system under a link. Without links, link is empty.
type underLink struct{ system, link string }

// leftOut is a case that a session did not measure, with the session's link.
type leftOut struct {
	record.Unmeasured
	link string
}

// collector gathers the content of records for the report, one line after the other.
type collector struct {
	report *Report
	groups []Group
	// figures holds the measures of each case, in the order of the records.
	figures map[string][]record.Value
	// values holds the results of the trials, and shares the parts of their connections
	// that the fast path made.
	values, shares map[key][]float64
	// baseline holds the results by name and phase, and units the units by name.
	baseline map[string]map[record.Phase][]float64
	units    map[string]string
	// measured counts the trials that succeeded, and failed holds the errors of the
	// others. Their keys have no reason.
	measured   map[Missing]int
	failed     map[Missing][]string
	unmeasured []leftOut
	// mpis holds the MPI versions of each system.
	mpis map[string][]string
	// under holds the systems and links that have trials.
	under map[underLink]bool
	link  string // of the current session
	pool  *pool
}

func newCollector(r *Report) *collector {
	return &collector{
		report: r, figures: map[string][]record.Value{}, values: map[key][]float64{}, shares: map[key][]float64{},
		baseline: map[string]map[record.Phase][]float64{}, units: map[string]string{},
		measured: map[Missing]int{}, failed: map[Missing][]string{},
		mpis: map[string][]string{}, under: map[underLink]bool{}, pool: newPool(),
	}
}

func (c *collector) add(line record.Line) error {
	switch {
	case line.CutOff > 0:
		c.report.CutOff++
	case line.Unmeasured != nil:
		c.unmeasured = append(c.unmeasured, leftOut{*line.Unmeasured, c.link})
	case line.Session != nil:
		if err := c.report.session(line); err != nil {
			return err
		}
		if err := c.pool.session(line); err != nil {
			return err
		}
		c.link = ""
		if line.Session.Link != nil {
			c.link = line.Session.Link.Name
		}
	case line.Trial != nil:
		if c.report.Sessions == 0 {
			return errors.New("the records begin with a trial instead of a session")
		}
		c.trial(line.Trial)
	}
	return nil
}

func (c *collector) trial(t *record.Trial) {
	c.pool.trial(t)
	if said := c.mpis[t.System]; t.Step.MPI != "" && !slices.Contains(said, t.Step.MPI) {
		c.mpis[t.System] = append(said, t.Step.MPI)
	}
	at := Missing{System: t.System, Case: t.Case}
	switch {
	case t.Error != "":
		c.failed[at] = append(c.failed[at], t.Error)
	case t.Phase == record.WarmUp:
	case t.Phase == record.Run:
		c.measured[at]++
		c.run(t)
	default:
		c.measured[at]++
		for _, v := range t.Values {
			if c.baseline[v.Name] == nil {
				c.baseline[v.Name] = map[record.Phase][]float64{}
			}
			c.units[v.Name] = v.Unit
			c.baseline[v.Name][t.Phase] = append(c.baseline[v.Name][t.Phase], v.Value)
		}
	}
}

// run adds the results of a trial that is neither a warm-up nor of the baseline.
func (c *collector) run(t *record.Trial) {
	r := c.report
	if !slices.ContainsFunc(c.groups, func(g Group) bool { return g.Name == t.Case }) {
		c.groups = append(c.groups, Group{Name: t.Case, Kind: t.Kind, Anchor: anchor(t.Case), Parameters: parameters(t.Parameters), Against: t.Against, Beware: r.smallFile(t)})
	}
	if !slices.Contains(r.Systems, t.System) {
		r.Systems = append(r.Systems, t.System)
	}
	c.under[underLink{t.System, c.link}] = true
	if share, is := r.shareOf(t); is {
		at := key{t.Case, record.Share, t.System}
		c.shares[at] = append(c.shares[at], share)
	}
	for _, v := range t.Values {
		if v.Unit == record.Check {
			r.answer(t.System, t.Case, v)
			continue
		}
		if !slices.ContainsFunc(c.figures[t.Case], func(f record.Value) bool { return f.Name == v.Name }) {
			c.figures[t.Case] = append(c.figures[t.Case], v)
		}
		at := key{t.Case, v.Name, t.System}
		c.values[at] = append(c.values[at], v.Value)
	}
}

// fill adds the figures of all cases to the report.
func (c *collector) fill() {
	r := c.report
	r.cases = c.pool.cases
	for system, said := range c.mpis {
		r.Versions["MPI of "+system] = strings.Join(said, " and ")
	}
	// The reference comes first, then the others by their names: trials have a random order.
	slices.SortFunc(r.Systems, func(a, b string) int {
		if (a == r.Reference) != (b == r.Reference) {
			return map[bool]int{true: -1, false: 1}[a == r.Reference]
		}
		return cmp.Compare(a, b)
	})
	slices.SortFunc(c.groups, func(a, b Group) int { return cmp.Compare(a.Name, b.Name) })
	for _, g := range c.groups {
		for _, f := range c.figures[g.Name] {
			figure := Figure{Anchor: anchor(g.Name + " " + f.Name), Name: f.Name, Unit: f.Unit, Better: f.Better}
			reference := c.values[key{cmp.Or(g.Against, g.Name), f.Name, r.Reference}]
			figure.Rows = r.rows(f, g.Against, reference, func(system string) []float64 { return c.values[key{g.Name, f.Name, system}] })
			for i := range figure.Rows {
				figure.Rows[i].share(c.shares[key{g.Name, record.Share, figure.Rows[i].System}])
			}
			g.Figures = append(g.Figures, figure)
		}
		r.Groups = append(r.Groups, g)
	}
	r.noise(c.baseline, c.units)
	r.missing(c.unmeasured, c.under, c.measured, c.failed)
}
