package plan

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/bench/profiles"
)

// file is the format of a plan.
type file struct {
	Name        string          `yaml:"name"`
	Title       string          `yaml:"title"`
	Seed        uint64          `yaml:"seed"`
	Repetitions *int            `yaml:"repetitions"`
	WarmUps     *int            `yaml:"warm-ups"`
	CPUs        int             `yaml:"cpus"`
	MemoryMB    int             `yaml:"memory-mb"`
	Timeout     string          `yaml:"timeout"`
	Together    bool            `yaml:"together"`
	Reference   string          `yaml:"reference"`
	Links       map[string]Link `yaml:"links"`
	Baseline    *Baseline       `yaml:"baseline"`
	Systems     []fileSystem    `yaml:"systems"`
	Cases       []fileCase      `yaml:"cases"`
	// Overview lists figures that a report shows first, for all systems. The report
	// reads them from the plan in the records.
	Overview []string `yaml:"overview"`
}

type fileSystem struct {
	Name    string            `yaml:"name"`
	Driver  string            `yaml:"driver"`
	Options map[string]string `yaml:"options"`
}

type fileCase struct {
	Name        string              `yaml:"name"`
	Case        string              `yaml:"case"`
	Systems     []string            `yaml:"systems"`
	Links       []string            `yaml:"links"`
	Against     string              `yaml:"against"`
	Repetitions *int                `yaml:"repetitions"`
	WarmUps     *int                `yaml:"warm-ups"`
	Parameters  map[string]string   `yaml:"parameters"`
	Matrix      map[string][]string `yaml:"matrix"`
}

const (
	defaultRepetitions = 10
	defaultWarmUps     = 1
	defaultTimeout     = 5 * time.Minute
	defaultDrift       = 0.05
	defaultBaselines   = 3
)

// plain matches names: they become parts of object names and anchors.
var plain = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`) //nolint:gochecknoglobals // a constant

// typeOf matches the YAML library's mention of Go types.
var typeOf = regexp.MustCompile(` (not found in type|into) \S+$`) //nolint:gochecknoglobals // a constant

// reader reads one plan, and collects all mistakes in it with their lines.
type reader struct {
	path   string
	root   *yaml.Node
	known  Catalogue
	faults []error
}

// Parse parses the text of a plan, whose errors name the file path. The error joins all
// mistakes in the plan.
func Parse(path string, text []byte, known Catalogue) (*Plan, error) {
	r := &reader{path: path, known: known, root: &yaml.Node{}}
	var f file
	if err := yaml.Unmarshal(text, r.root); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&f); err != nil {
		var wrong *yaml.TypeError
		if !errors.As(err, &wrong) {
			return nil, fmt.Errorf("%s: it holds no plan", path)
		}
		for _, e := range wrong.Errors {
			e = typeOf.ReplaceAllStringFunc(strings.TrimPrefix(e, "line "), func(s string) string {
				if strings.Contains(s, "not found") {
					return " is not known here"
				}
				return " where something else is needed"
			})
			r.faults = append(r.faults, fmt.Errorf("%s:%s", path, e))
		}
	}
	p := r.plan(f)
	p.Text = string(text)
	if len(r.faults) > 0 {
		return nil, errors.Join(r.faults...)
	}
	return p, nil
}

// fault records a mistake at a place in the file. at lists the keys and indices that
// lead to the place; trailing ones may be missing in the file.
func (r *reader) fault(at []any, format string, values ...any) {
	node := r.root
	line := node.Line
	if len(node.Content) > 0 {
		node = node.Content[0]
		line = node.Line
	}
walk:
	for _, step := range at {
		switch step := step.(type) {
		case int:
			if step >= len(node.Content) {
				break walk
			}
			node = node.Content[step]
			line = node.Line
		case string:
			found := false
			for i := 0; i+1 < len(node.Content); i += 2 {
				if node.Content[i].Value == step {
					line, node, found = node.Content[i].Line, node.Content[i+1], true
					break
				}
			}
			if !found {
				break walk
			}
		}
	}
	r.faults = append(r.faults, fmt.Errorf("%s:%d: %s", r.path, line, fmt.Sprintf(format, values...)))
}

func (r *reader) plan(f file) *Plan {
	p := &Plan{
		Name: f.Name, Title: f.Title, Seed: f.Seed, CPUs: f.CPUs, MemoryMB: f.MemoryMB, Reference: f.Reference,
		Repetitions: r.count(f.Repetitions, defaultRepetitions, 1, "repetitions"),
		WarmUps:     r.count(f.WarmUps, defaultWarmUps, 0, "warm-ups"),
		Timeout:     defaultTimeout, Together: f.Together, Links: f.Links,
	}
	if p.Title == "" {
		p.Title = p.Name
	}
	if !plain.MatchString(p.Name) {
		r.fault([]any{"name"}, "name %q: give one of lowercase letters, digits and dashes", p.Name)
	}
	if p.CPUs < 1 {
		r.fault([]any{"cpus"}, "cpus %d: give the number of cores of each trial", p.CPUs)
	}
	if p.MemoryMB < 1 {
		r.fault([]any{"memory-mb"}, "memory-mb %d: give the memory of each trial in MB", p.MemoryMB)
	}
	if f.Timeout != "" {
		timeout, err := time.ParseDuration(f.Timeout)
		if err != nil || timeout <= 0 {
			r.fault([]any{"timeout"}, "timeout %q: give a time such as 90s or 5m", f.Timeout)
		}
		p.Timeout = timeout
	}
	for name, link := range f.Links {
		r.link(name, link)
		if !plain.MatchString(name) {
			r.fault([]any{"links", name}, "link name %q: give one of lowercase letters, digits and dashes", name)
		}
	}
	r.systems(p, f.Systems)
	for i, c := range f.Cases {
		r.addCase(p, c, []any{"cases", i})
	}
	if len(f.Cases) == 0 {
		r.fault([]any{"cases"}, "there is no case: name some of %s", names(r.known.Cases))
	}
	for _, c := range p.Cases {
		p.rounds = max(p.rounds, c.Repetitions)
	}
	r.against(p)
	r.baseline(p, f.Baseline)
	return p
}

// link checks the settings of a link.
func (r *reader) link(name string, l Link) {
	at := []any{"links", name}
	for _, key := range l.unknown {
		r.fault(append(at, key), "link %s: %s is not known here", name, key)
	}
	if l.Profile != "" {
		if _, err := profiles.Read(l.Profile); err != nil {
			r.fault(append(at, "profile"), "link %s: %v", name, err)
		}
	}
	if l.Offloads != "" && l.Offloads != "on" && l.Offloads != "off" {
		r.fault(append(at, "offloads"), "link %s: offloads %q: give on or off", name, l.Offloads)
	}
	if l.MTU != 0 && (l.MTU < 576 || l.MTU > 65535) {
		r.fault(append(at, "mtu"), "link %s: mtu %d: give one from 576 to 65535", name, l.MTU)
	}
	for word, is := range map[string]struct{ value, pattern string }{
		"rate": {l.Rate, `^[0-9]+(\.[0-9]+)?[kmgt]?bit$`}, "loss": {l.Loss, `^[0-9]+(\.[0-9]+)?%$`},
	} {
		if is.value != "" && !regexp.MustCompile(is.pattern).MatchString(is.value) {
			r.fault(append(at, word), "link %s: %s %q: give a number with a unit, such as 10gbit for a rate or 0.1%% for a loss", name, word, is.value)
		}
	}
}

// against finds the case that each case is compared with: the case with the given name,
// the same link, and the same values of its matrix's parameters. The link may differ only
// if the reference itself is measured; otherwise the plan has forgotten a link.
func (r *reader) against(p *Plan) {
	for i := range p.Cases {
		c := &p.Cases[i]
		if c.against == "" {
			continue
		}
		var found, elsewhere []string
		for _, other := range p.Cases {
			same := other.Base == c.against && other.Name != c.Name && other.Kind == c.Kind && slices.Contains(other.Systems, p.Reference)
			for key, value := range other.variant {
				same = same && c.Parameters[key] == value
			}
			switch {
			case same && other.Link == c.Link:
				found = append(found, other.Name)
			case same:
				elsewhere = append(elsewhere, other.Name)
			}
		}
		under := "the same link"
		if slices.Contains(c.Systems, p.Reference) {
			under += ", or only with another link,"
			if found == nil {
				found = elsewhere // the reference with this link, compared with another link
			}
		}
		if len(found) != 1 {
			r.fault([]any{"cases"}, "%s is against %q, and %d cases of that name are on %s with %s and the same parameters", c.Name, c.against, len(found), p.Reference, under)
			return
		}
		c.Against = found[0]
	}
}

// count returns a number of the file, or the default for a missing one.
func (r *reader) count(given *int, otherwise, least int, at ...any) int {
	if given == nil {
		return otherwise
	}
	if *given < least {
		r.fault(at, "%v %d: give %d or more", at[len(at)-1], *given, least)
	}
	return *given
}

func (r *reader) systems(p *Plan, systems []fileSystem) {
	seen := map[string]bool{}
	for i, s := range systems {
		at := []any{"systems", i}
		if s.Driver == "" {
			s.Driver = s.Name
		}
		if s.Name == "" {
			s.Name = s.Driver
		}
		switch {
		case !plain.MatchString(s.Name):
			r.fault(at, "system name %q: give one of lowercase letters, digits and dashes", s.Name)
		case seen[s.Name]:
			r.fault(at, "there are two systems %s: give one of them another name", s.Name)
		}
		seen[s.Name] = true
		driver, ok := r.known.Drivers[s.Driver]
		if !ok {
			r.fault(at, "there is no driver %q: there are %s", s.Driver, names(r.known.Drivers))
			continue
		}
		p.Systems = append(p.Systems, System{Name: s.Name, Driver: s.Driver, Options: r.parameters(driver, s.Options, append(at, "options"))})
	}
	if len(systems) == 0 {
		r.fault([]any{"systems"}, "there is no system: name some of %s", names(r.known.Drivers))
		return
	}
	if p.Reference == "" {
		p.Reference = systems[0].Name
		if p.Reference == "" {
			p.Reference = systems[0].Driver
		}
	}
	if !seen[p.Reference] {
		r.fault([]any{"reference"}, "reference %q is not one of the systems", p.Reference)
	}
}

// addCase adds a case of the file to the plan: one Case for each combination of its links
// and the values of its matrix.
func (r *reader) addCase(p *Plan, c fileCase, at []any) {
	kind, ok := r.known.Cases[c.Case]
	if !ok {
		r.fault(append(at, "case"), "there is no case %q: there are %s", c.Case, names(r.known.Cases))
		return
	}
	if c.Name == "" {
		c.Name = c.Case
	}
	if !plain.MatchString(c.Name) {
		r.fault(append(at, "name"), "name %q: give one of lowercase letters, digits and dashes", c.Name)
	}
	base := Case{
		Name: c.Name, Kind: c.Case, Systems: c.Systems, Base: c.Name, against: c.Against,
		Repetitions: r.count(c.Repetitions, p.Repetitions, 1, append(at, "repetitions")...),
		WarmUps:     r.count(c.WarmUps, p.WarmUps, 0, append(at, "warm-ups")...),
	}
	for _, name := range c.Systems {
		if !slices.ContainsFunc(p.Systems, func(s System) bool { return s.Name == name }) {
			r.fault(append(at, "systems"), "%s is not one of the plan's systems", name)
		}
	}
	if len(base.Systems) == 0 {
		for _, s := range p.Systems {
			base.Systems = append(base.Systems, s.Name)
		}
	}
	variants := []map[string]string{{}}
	for _, key := range slices.Sorted(maps.Keys(c.Matrix)) {
		if _, twice := c.Parameters[key]; twice {
			r.fault(append(at, "matrix", key), "%s is among the parameters, too", key)
		}
		if len(c.Matrix[key]) == 0 {
			r.fault(append(at, "matrix", key), "%s has no values", key)
		}
		var more []map[string]string
		for _, before := range variants {
			for _, value := range c.Matrix[key] {
				variant := maps.Clone(before)
				variant[key] = value
				more = append(more, variant)
			}
		}
		variants = more
	}
	links := r.linksOf(p, c, at)
	faults := len(r.faults)
	for i := range len(links) * len(variants) {
		variant := variants[i%len(variants)]
		one := base
		one.variant = variant
		if one.Link = links[i/len(variants)]; one.Link != "" {
			one.Name += " link=" + one.Link
		}
		for _, key := range slices.Sorted(maps.Keys(variant)) {
			one.Name += " " + key + "=" + variant[key]
		}
		given := maps.Clone(variant)
		maps.Copy(given, c.Parameters)
		one.Parameters = r.parameters(kind, given, append(at, "parameters"))
		if _, twice := p.Case(one.Name); twice {
			r.fault(at, "there are two cases %s: give one of them another name", one.Name)
		}
		p.Cases = append(p.Cases, one)
		if len(r.faults) > faults { // the other combinations have the same mistakes
			return
		}
	}
}

// linksOf returns the names of the links that a case is measured with. If there are none,
// it returns one empty name.
func (r *reader) linksOf(p *Plan, c fileCase, at []any) []string {
	for _, name := range c.Links {
		if _, ok := p.Links[name]; !ok {
			r.fault(append(at, "links"), "%s is not one of the plan's links", name)
		}
	}
	switch {
	case len(c.Links) > 0:
		return c.Links
	case len(p.Links) > 0:
		r.fault(at, "%s: say under which of the plan's links it is measured", c.Name)
	}
	return []string{""}
}

// parameters returns all parameters of a kind, with the given values or defaults.
func (r *reader) parameters(kind Kind, given map[string]string, at []any) map[string]string {
	all := map[string]string{}
	for _, parameter := range kind.Parameters {
		all[parameter.Name] = parameter.Default
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		i := slices.IndexFunc(kind.Parameters, func(p Parameter) bool { return p.Name == name })
		if i < 0 {
			r.fault(append(at, name), "%s has no %q: %s", kind.Name, name, parameterNames(kind))
			continue
		}
		all[name] = given[name]
	}
	for _, parameter := range kind.Parameters {
		if err := parameter.Check(all[parameter.Name]); err != nil {
			r.fault(append(at, parameter.Name), "%s: %s %q: %v", kind.Name, parameter.Name, all[parameter.Name], err)
		}
	}
	return all
}

func (r *reader) baseline(p *Plan, b *Baseline) {
	if b == nil {
		return
	}
	p.Baseline = *b
	if p.Baseline.Drift == 0 {
		p.Baseline.Drift = defaultDrift
	}
	if p.Baseline.Repetitions == 0 {
		p.Baseline.Repetitions = defaultBaselines
	}
	links := p.links()
	i := slices.IndexFunc(links, func(link string) bool {
		c, ok := p.baselineCase(link)
		return !ok || !slices.Contains(c.Systems, p.Reference)
	})
	if i >= 0 {
		c, ok := p.baselineCase(links[i])
		switch {
		case !ok && len(p.Links) > 0:
			r.fault([]any{"baseline", "case"}, "baseline %q is not among the plan's cases with each link", p.Baseline.Case)
		case !ok:
			r.fault([]any{"baseline", "case"}, "baseline %q is not one of the plan's cases", p.Baseline.Case)
		default:
			r.fault([]any{"baseline", "case"}, "the case %s is not measured on %s, the reference", c.Name, p.Reference)
		}
	}
	if p.Baseline.Drift < 0 || p.Baseline.Drift > 1 {
		r.fault([]any{"baseline", "drift"}, "drift %g: give a part of one, such as 0.05", p.Baseline.Drift)
	}
	if p.Baseline.Repetitions < 0 {
		r.fault([]any{"baseline", "repetitions"}, "repetitions %d: give 1 or more", p.Baseline.Repetitions)
	}
}

func names(kinds map[string]Kind) string {
	return strings.Join(slices.Sorted(maps.Keys(kinds)), ", ")
}

func parameterNames(kind Kind) string {
	if len(kind.Parameters) == 0 {
		return "it has none"
	}
	var all []string
	for _, p := range kind.Parameters {
		all = append(all, p.Name)
	}
	return "it has " + strings.Join(all, ", ")
}
