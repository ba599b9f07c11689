package report

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/bench/internal/record"
)

// conditions holds everything that the trials of a session share. Trials in one row must
// have equal conditions.
type conditions struct {
	machines []record.Machine
	versions map[string]string
	// trial holds the plan's settings cpus and memory-mb, for each trial.
	trial map[string]string
	// systems holds the plan's systems by name.
	systems map[string]any
	// link describes the link between the hosts in words.
	link string
}

func conditionsOf(s *record.Session) (conditions, error) {
	var plan struct {
		CPUs     string           `yaml:"cpus"`
		MemoryMB string           `yaml:"memory-mb"`
		Systems  []map[string]any `yaml:"systems"`
	}
	if err := yaml.Unmarshal([]byte(s.Plan), &plan); err != nil {
		return conditions{}, fmt.Errorf("read the plan %s of the records: %w", s.Name, err)
	}
	c := conditions{machines: s.Nodes, versions: s.Versions, systems: map[string]any{}}
	c.trial = map[string]string{"cpus": plan.CPUs, "memory-mb": plan.MemoryMB}
	if s.Link != nil {
		c.link = s.Link.Name + ": " + s.Link.Is
	}
	for _, system := range plan.Systems {
		c.systems[fmt.Sprint(system["name"])] = system
	}
	return c, nil
}

// differences describes each difference to other conditions. It compares only versions and
// systems that both have.
func (c conditions) differences(other conditions) (all []string) {
	if !record.SameMachines(c.machines, other.machines) {
		all = append(all, fmt.Sprintf("machines: %s; %s", cmp.Or(record.Kinds(c.machines), "unknown"), cmp.Or(record.Kinds(other.machines), "unknown")))
	}
	if c.link != other.link {
		all = append(all, fmt.Sprintf("link: %s; %s", cmp.Or(c.link, "none"), cmp.Or(other.link, "none")))
	}
	all = append(all, differing("of each trial ", c.trial, other.trial)...)
	for _, name := range slices.Sorted(maps.Keys(c.versions)) {
		if now := other.versions[name]; now != "" && now != c.versions[name] {
			all = append(all, fmt.Sprintf("%s: %s; %s", name, c.versions[name], now))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.systems)) {
		if is, has := other.systems[name]; has && !reflect.DeepEqual(is, c.systems[name]) {
			all = append(all, fmt.Sprintf("the system %s: %s; %s", name, settings(c.systems[name]), settings(is)))
		}
	}
	return all
}

// differing describes each name whose values differ between a and b. what begins each
// description.
func differing(what string, a, b map[string]string) (all []string) {
	names := maps.Clone(a)
	if names == nil {
		names = map[string]string{}
	}
	maps.Copy(names, b)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if a[name] != b[name] {
			all = append(all, fmt.Sprintf("%s%s: %s; %s", what, name, cmp.Or(a[name], "none"), cmp.Or(b[name], "none")))
		}
	}
	return all
}

// settings formats the settings of a plan's system in one line.
func settings(system any) string {
	text, err := yaml.Marshal(system)
	if err != nil {
		return fmt.Sprint(system)
	}
	return strings.Join(strings.Fields(strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", ", ")), " ")
}

// pool checks that no trial is counted twice, and that no row mixes trials of two
// kinds.
type pool struct {
	now      conditions
	sessions map[string]bool
	trials   map[trialAt]bool
	cases    map[string]pooled
	faults   []error
}

type trialAt struct {
	record.ID
	start time.Time
}

// pooled holds the conditions, kind and parameters of the first trial of a case.
type pooled struct {
	conditions
	kind       string
	parameters map[string]string
	// said is set once a fault of the case has been added.
	said bool
}

func newPool() *pool {
	return &pool{sessions: map[string]bool{}, trials: map[trialAt]bool{}, cases: map[string]pooled{}}
}

func (p *pool) session(line record.Line) error {
	var err error
	if p.now, err = conditionsOf(line.Session); err != nil || line.Time.IsZero() {
		return err
	}
	at := line.Time.UTC().Format(time.RFC3339Nano) + " " + line.Session.Name
	if p.sessions[at] {
		return fmt.Errorf("the session of %s (plan %s) is given twice: give each file of records once", line.Time.UTC().Format("2006-01-02 15:04:05"), line.Session.Name)
	}
	p.sessions[at] = true
	return nil
}

func (p *pool) trial(t *record.Trial) {
	at := trialAt{t.ID(), t.Start.UTC()}
	if p.trials[at] && !t.Start.IsZero() {
		p.faults = append(p.faults, fmt.Errorf("the trial %s %d of %s on %s (%s) is given twice: give each file of records once",
			t.Phase, t.Number, t.Case, t.System, t.Start.UTC().Format("2006-01-02 15:04:05")))
	}
	p.trials[at] = true
	first, is := p.cases[t.Case]
	if !is {
		p.cases[t.Case] = pooled{conditions: p.now, kind: t.Kind, parameters: t.Parameters}
		return
	}
	if first.said {
		return
	}
	differences := first.another(pooled{kind: t.Kind, parameters: t.Parameters})
	if !first.same(p.now) {
		differences = append(differences, first.differences(p.now)...)
	}
	if differences == nil {
		return
	}
	p.faults = append(p.faults, fmt.Errorf("%s was measured under two conditions (%s), which one row cannot show; make a report of each: 'berth bench compare' shows both",
		t.Case, strings.Join(differences, "; and ")))
	first.said = true
	p.cases[t.Case] = first
}

// another describes the differences in kind and parameters. With any, the two are different
// cases in spite of their name.
func (p pooled) another(other pooled) (all []string) {
	if p.kind != other.kind {
		all = append(all, fmt.Sprintf("case: %s; %s", p.kind, other.kind))
	}
	return append(all, differing("parameter ", p.parameters, other.parameters)...)
}

// same reports whether the two belong to one session, so that they need no comparison.
func (c conditions) same(other conditions) bool {
	return reflect.ValueOf(c.systems).Pointer() == reflect.ValueOf(other.systems).Pointer()
}

// mostFaults limits the faults in an error message.
const mostFaults = 5

// fault returns the faults as one error, or nil. It describes at most mostFaults of them.
func (p *pool) fault() error {
	if n := len(p.faults); n > mostFaults {
		return errors.Join(append(slices.Clone(p.faults[:mostFaults]), fmt.Errorf("and %d more such faults", n-mostFaults))...)
	}
	return errors.Join(p.faults...)
}
