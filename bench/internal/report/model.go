package report

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/bench/internal/record"
)

// Report holds the content that a report shows in all its formats.
type Report struct {
	Title     string
	Name      string
	Reference string
	Seed      uint64
	From, To  string
	Sessions  int
	Versions  map[string]string
	Machines  []record.Machine
	Slurm     *record.Slurm
	Plan      string
	Systems   []string
	Groups    []Group
	// Overview holds the figures that the plan lists for the first page. It is nil if
	// the plan lists none.
	Overview *Overview
	Links    []Link
	// Shared reports whether several hosts are one machine.
	Shared bool
	Noise  []Noise
	// Drift is the relative change of the baseline above which a report warns.
	Drift float64
	// Disturbed holds the hosts that were busy with other programs when a session
	// began.
	Disturbed []Disturbed
	// CutOff counts the lines that a crash left unfinished; their content is
	// unknown.
	CutOff  int
	Missing []Missing
	Papers  []Paper
	// Renamed reports whether the plan's text has earlier names of systems.
	Renamed bool
	// Curves holds the figures as functions of the number of nodes.
	Curves []Curve
	// Answers holds the systems' answers to questions, and Rubric the rules for people
	// who grade the answers. Both are nil if no question was asked.
	Answers []Answer
	Rubric  *Rubric
	// Before is the command that ran on each host before images were delivered.
	Before string
	// fast holds the systems that use the fast path, according to the plan.
	fast map[string]bool
	// memory is the memory of a job on each host, in bytes.
	memory float64
	// cases holds the conditions under which each case was measured.
	cases map[string]pooled
}

// Link describes the network link between the hosts in a session: the plan's
// description (Is), and the settings in effect on each host.
type Link struct {
	Name, Is string
	Hosts    []HostLink
}

// HostLink holds the settings in effect on a host.
type HostLink struct{ Host, Settings string }

// Group holds the figures of one case.
type Group struct {
	Name, Kind, Anchor string
	Parameters         string
	// Against is another case. The ratios compare with that case's figures on the
	// reference. If it is empty, they compare with this case's own figures there.
	Against string
	// Beware is a warning about all figures of the case, or "".
	Beware  string
	Figures []Figure
	// Distribution holds the case's times; nil if its program prints none.
	Distribution *Distribution
}

// Figure is one measure of a case, on all systems.
type Figure struct {
	Anchor, Name, Unit, Better string
	Rows                       []Row
	SVG                        string
}

// Row is one system in a figure.
type Row struct {
	System string
	Summary
	Ratio    Ratio
	HasRatio bool
	// Verdict is the meaning of the ratio in a few words.
	Verdict string
	// Share is the percentage of connections that used the fast path: the median of
	// the trials, and the smallest. It is empty if the system has no fast path.
	Share string
	// Overlay reports whether the share was so small in one of the trials that the row
	// does not describe the fast path.
	Overlay bool
}

// Label returns the name of the row's system, marked if its figures are the overlay's.
func (r Row) Label() string {
	if r.Overlay {
		return r.System + " (overlay)"
	}
	return r.System
}

// leastShare is the share of connections, in %, below which a row describes the
// overlay.
const leastShare = 99

// Noise holds the medians of a figure of the baseline at the start, in the middle and at
// the end of a run.
type Noise struct {
	Name, Unit         string
	Start, Middle, End float64
	// Change is the relative difference between the largest and the smallest median.
	Change float64
	// Drifted reports whether Change exceeds Report.Drift, and Interrupted whether one of
	// the medians is missing.
	Drifted, Interrupted bool
}

// Missing names a case that was not measured, and the reason.
type Missing struct{ System, Case, Reason string }

// model returns the content of a report about the lines of records. It returns an error
// if there are no sessions, or if their trials cannot be compared.
func model(lines []record.Line) (Report, error) {
	r := Report{Versions: map[string]string{}}
	c := newCollector(&r)
	for _, line := range lines {
		if err := c.add(line); err != nil {
			return r, err
		}
	}
	if r.Sessions == 0 {
		return r, errors.New("there are no records")
	}
	if err := c.pool.fault(); err != nil {
		return r, err
	}
	c.fill()
	r.Disturbed = disturbed(lines)
	r.curves(lines)
	r.distributions(lines)
	var err error
	if r.Overview, err = r.overview(); err != nil {
		return r, err
	}
	r.Renamed = r.Renamed && (slices.Contains(r.Systems, "berth") || slices.Contains(r.Systems, "berth-overlay"))
	if r.Papers, err = papers(lines); err != nil || r.Answers == nil {
		return r, err
	}
	slices.SortStableFunc(r.Answers, func(a, b Answer) int {
		return cmp.Or(cmp.Compare(a.System, b.System), cmp.Compare(a.Case, b.Case))
	})
	r.Rubric, err = rubric()
	return r, err
}

// dateForm is the layout of dates.
const dateForm = "2 January 2006, 15:04 UTC"

// session adds a session to the report. It returns an error if it cannot parse the plan.
func (r *Report) session(line record.Line) error {
	s := line.Session
	if err := r.readPlan(s); err != nil {
		return fmt.Errorf("read the plan %s of the records: %w", s.Name, err)
	}
	if r.Sessions == 0 {
		r.Title, r.Name, r.Reference, r.Seed, r.Plan, r.Drift = s.Title, s.Name, s.Reference, s.Seed, s.Plan, s.Drift
		r.Before = s.Before
		r.From = line.Time.UTC().Format(dateForm)
	}
	r.To = line.Time.UTC().Format(dateForm)
	r.Sessions++
	r.Renamed = r.Renamed || s.Renamed()
	maps.Copy(r.Versions, s.Versions)
	r.Slurm = s.Slurm
	r.link(s)
	for i, m := range s.Nodes {
		for _, other := range s.Nodes[:i] {
			r.Shared = r.Shared || m.Boot != "" && m.Boot == other.Boot
		}
	}
	for _, m := range s.Nodes {
		if !slices.ContainsFunc(r.Machines, func(have record.Machine) bool { return have.Name == m.Name }) {
			r.Machines = append(r.Machines, m)
		}
	}
	return nil
}

// link adds a session's link to the report, unless the report already has it.
func (r *Report) link(s *record.Session) {
	if s.Link == nil {
		return
	}
	link := Link{Name: s.Link.Name, Is: s.Link.Is}
	for _, m := range s.Nodes {
		link.Hosts = append(link.Hosts, HostLink{m.Name, strings.Join(inEffect(m.Settings, s.Link.Wanted), ", ")})
	}
	if !slices.ContainsFunc(r.Links, func(have Link) bool { return reflect.DeepEqual(have, link) }) {
		r.Links = append(r.Links, link)
	}
}

// inEffect describes a host's settings of its network interfaces, and of everything else
// that the link defines (wanted). It adds the wanted value to each setting that differs.
func inEffect(settings, wanted map[string]string) (parts []string) {
	wanted = maps.Clone(wanted)
	say := func(what, is, wants string) {
		text := what + ": " + is
		if wants != "" && is != wants {
			text += " (wanted: " + wants + ")"
		}
		parts = append(parts, text)
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if what, is := strings.CutPrefix(name, record.LinkSetting); is {
			_, of, _ := strings.Cut(what, " ")
			say(what, settings[name], wanted[of])
			delete(wanted, of)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		say(name, cmp.Or(inForce(settings[name]), "not seen"), wanted[name])
	}
	return parts
}

// share sets Share and Overlay from the percentages of the trials. One trial over the
// overlay sets Overlay, because its results are part of the row's figures.
func (r *Row) share(values []float64) {
	if len(values) == 0 {
		return
	}
	if !slices.ContainsFunc(values, func(v float64) bool { return v != uncounted }) {
		r.Overlay = true
		return
	}
	values = slices.Clone(values)
	for i, v := range values {
		values[i] = max(0, v)
	}
	// Round down, so that only 100 % is shown as 100 %.
	text := func(v float64) string { return strconv.FormatFloat(math.Floor(10*v)/10, 'f', -1, 64) + " %" }
	s := summarise(values)
	r.Overlay = s.Smallest < leastShare
	r.Share = text(s.Median)
	if least := text(s.Smallest); least != r.Share {
		r.Share += ", least " + least + ","
	}
}

// rows returns the row of each system that has values of a figure. reference holds the
// values to compare with. The reference system itself has a ratio only if they are from
// another case, against.
func (r *Report) rows(f record.Value, against string, reference []float64, of func(system string) []float64) (rows []Row) {
	for _, system := range r.Systems {
		values := of(system)
		if len(values) == 0 {
			continue
		}
		row := Row{System: system, Summary: summarise(values)}
		if system != r.Reference || against != "" {
			row.Ratio, row.HasRatio = ratio(reference, values)
			row.Verdict = verdict(row.Ratio, row.HasRatio, f.Better)
		}
		rows = append(rows, row)
	}
	return rows
}

// verdict returns the meaning of a ratio, or "" if there is no ratio. better is "higher",
// "lower" or "".
func verdict(r Ratio, exists bool, better string) string {
	switch {
	case !exists:
		return ""
	case !r.HasInterval():
		return "too few runs to tell"
	case !r.Differs():
		return "no difference seen"
	case better == "":
		return "differs"
	case (r.Value > 1) == (better == "higher"):
		return "better"
	}
	return "worse"
}

// noise adds the medians of the baseline, which show how much the machine itself changed
// during the run.
func (r *Report) noise(baseline map[string]map[record.Phase][]float64, units map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(baseline)) {
		median := func(phase record.Phase) float64 {
			if len(baseline[name][phase]) == 0 {
				return math.NaN()
			}
			return summarise(baseline[name][phase]).Median
		}
		n := Noise{
			Name: name, Unit: units[name],
			Start: median(record.BaselineStart), Middle: median(record.BaselineMiddle), End: median(record.BaselineEnd),
		}
		n.Interrupted = math.IsNaN(n.Start) || math.IsNaN(n.Middle) || math.IsNaN(n.End)
		if !n.Interrupted {
			n.Change = max(n.Start, n.Middle, n.End)/min(n.Start, n.Middle, n.End) - 1
			n.Drifted = n.Change > r.Drift
		}
		r.Noise = append(r.Noise, n)
	}
}

// missing adds the skipped and the failed cases to the report, each once. under holds the
// systems and links that have trials.
func (r *Report) missing(unmeasured []leftOut, under map[underLink]bool, measured map[Missing]int, failed map[Missing][]string) {
	add := func(m Missing) {
		if !slices.Contains(r.Missing, m) {
			r.Missing = append(r.Missing, m)
		}
	}
	for _, u := range unmeasured {
		// A later session may have measured the case. If a whole system was skipped,
		// that session must have the same link. The name of a case includes the link.
		if u.Case == "" && under[underLink{u.System, u.link}] || u.Case != "" && measured[Missing{System: u.System, Case: u.Case}] > 0 {
			continue
		}
		all := "all cases"
		if u.link != "" {
			all += " with the link " + u.link
		}
		add(Missing{u.System, cmp.Or(u.Case, all), u.Reason})
	}
	for _, at := range slices.SortedFunc(maps.Keys(failed), func(a, b Missing) int {
		return cmp.Or(cmp.Compare(a.System, b.System), cmp.Compare(a.Case, b.Case))
	}) {
		if measured[at] == 0 && slices.ContainsFunc(r.Missing, func(m Missing) bool { return m.System == at.System && m.Case == at.Case }) {
			continue
		}
		reasons := failed[at]
		add(Missing{at.System, at.Case, fmt.Sprintf("%d of %d trials failed, the last: %s", len(reasons), len(reasons)+measured[at], reasons[len(reasons)-1])})
	}
}

// parameters returns the parameters that are not empty as text, sorted by name.
func parameters(all map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name] != "" {
			parts = append(parts, name+"="+all[name])
		}
	}
	return strings.Join(parts, ", ")
}

// anchor returns a name as the fragment of a URL.
func anchor(name string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(name))
}
