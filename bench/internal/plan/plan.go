// Package plan parses plans and orders their trials. A plan selects cases,
// systems, repetitions and their order. The package starts nothing and knows no
// case or system itself; a Catalogue supplies the known ones.
package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/bench/profiles"
)

// Kind is a case or a driver that a plan can use, by its name.
type Kind struct {
	Name       string
	Summary    string
	Parameters []Parameter
	// Hosts is the number of machines for one trial.
	Hosts int
	// HostsFor returns the number of machines. It is nil if the number does not depend
	// on parameters.
	HostsFor func(parameters map[string]string) int
	// Seconds estimates the duration of one trial in seconds, or for a driver the time
	// that it adds to a trial.
	Seconds func(parameters map[string]string) float64
	// Images is set for cases that deliver images. Packing is the time in seconds that a
	// driver adds for these cases.
	Images  bool
	Packing float64
	// Together is set if a driver adds its time only once for several cases.
	Together bool
}

// Parameter is a setting of a Kind that plans may change.
type Parameter struct {
	Name, Default, Help string
	Check               func(value string) error
}

// OneOf returns a check that a value is one of the words.
func OneOf(words ...string) func(string) error {
	return func(value string) error {
		if slices.Contains(words, value) {
			return nil
		}
		return fmt.Errorf("give one of %s", strings.Join(words, ", "))
	}
}

// Catalogue lists the known cases and drivers by name.
type Catalogue struct{ Cases, Drivers map[string]Kind }

// Plan is the content of a plan file, with defaults for what the file omits.
type Plan struct {
	Text        string
	Name        string
	Title       string
	Seed        uint64
	Repetitions int
	WarmUps     int
	// CPUs and MemoryMB limit the cores and the memory of a trial on each host.
	CPUs     int
	MemoryMB int
	// Timeout limits the duration of a trial.
	Timeout time.Duration
	// Together makes the cases of a system follow one another in each round. A system
	// that supports it runs them in one container or cluster.
	Together bool
	// Links holds, by name, the setups of the network between the hosts. An operator
	// sets them up.
	Links map[string]Link
	// Link is the name of the link that is set up now; see Under.
	Link string
	// Reference is the name of the system that the others are compared with.
	Reference string
	Baseline  Baseline
	Systems   []System
	Cases     []Case

	// rounds is the largest number of repetitions of a case of the plan, including
	// cases that Only or Under removed.
	rounds int
}

// Link is a setup of the hosts and of the network between them. 'berth bench link'
// applies all fields except Is.
type Link struct {
	// Is describes the link in words.
	Is string `yaml:"is"`
	// MTU, Offloads, Rate and Loss have the values of ip, ethtool and tc. An empty value
	// keeps the current setting. Offloads sets tso and gso, and "off" also sets gro.
	MTU      int    `yaml:"mtu"`
	Offloads string `yaml:"offloads"`
	Rate     string `yaml:"rate"`
	Loss     string `yaml:"loss"`
	// Profile is the name of a tuning profile (package profiles).
	Profile string `yaml:"profile"`
	// SameHost places client and server on the first host.
	SameHost bool `yaml:"same-host"`

	// unknown holds keys in the file that have no field.
	unknown []string
}

// String describes the link in one line.
func (l Link) String() string {
	var words []string
	add := func(is bool, format string, values ...any) {
		if is {
			words = append(words, fmt.Sprintf(format, values...))
		}
	}
	add(l.Is != "", "%s", l.Is)
	add(l.Profile != "", "profile %s", l.Profile)
	add(l.MTU != 0, "mtu %d", l.MTU)
	add(l.Offloads != "", "offloads %s", l.Offloads)
	add(l.Rate != "", "rate %s", l.Rate)
	add(l.Loss != "", "loss %s", l.Loss)
	add(l.SameHost, "same host")
	return strings.Join(words, "; ")
}

// Wanted returns the settings of a link by the names that records use. It omits the rate,
// which records only have as a part of a queue's description. It returns an error if the
// profile cannot be read.
func (l Link) Wanted() (map[string]string, error) {
	all := map[string]string{}
	if l.Profile != "" {
		profile, err := profiles.Read(l.Profile)
		if err != nil {
			return nil, err
		}
		all = profile.Settings()
	}
	if l.MTU != 0 {
		all["mtu"] = strconv.Itoa(l.MTU)
	}
	if l.Offloads != "" {
		all["tso"], all["gso"] = l.Offloads, l.Offloads
	}
	if l.Offloads == "off" {
		all["gro"] = l.Offloads
	}
	if l.Loss != "" {
		all["loss"] = l.Loss
	}
	return all, nil
}

// UnmarshalYAML reads a link: either a mapping, or a text for Is.
func (l *Link) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		return node.Decode(&l.Is)
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if key := node.Content[i].Value; !slices.Contains([]string{"is", "mtu", "offloads", "rate", "loss", "profile", "same-host"}, key) {
			l.unknown = append(l.unknown, key)
		}
	}
	type fields Link
	return node.Decode((*fields)(l))
}

// Baseline is the case that is measured on the reference at the start, in the
// middle and at the end of a run, to see whether the machine stayed the same.
type Baseline struct {
	// Case is the name of the case. If it is empty, there is no baseline.
	Case        string `yaml:"case"`
	Repetitions int    `yaml:"repetitions"`
	// Drift is the relative change of the median above which a report warns.
	Drift float64 `yaml:"drift"`
}

// System is a driver with its options. Name is the name in figures.
type System struct {
	Name    string
	Driver  string
	Options map[string]string
}

// Case is a case with all of its parameters. Name is the name in figures, and Kind the
// name in the Catalogue.
type Case struct {
	Name        string
	Kind        string
	Systems     []string
	Repetitions int
	WarmUps     int
	Parameters  map[string]string
	// Base is the name without the suffixes of a matrix or a link.
	Base string
	// Link is the name of the link between the hosts, if the plan has links.
	Link string
	// Against is the name of another case. This case is compared with that case's figures
	// on the reference. If it is empty, the comparison is with this case's own figures on
	// the reference.
	Against string

	// against is the name in the file, without a suffix of a matrix or a link.
	against string
	// variant holds the parameters that a matrix has set.
	variant map[string]string
}

// Hosts returns the number of machines that the plan needs at the same time.
func (p *Plan) Hosts(known Catalogue) int {
	hosts := 1
	for _, c := range p.Cases {
		kind := known.Cases[c.Kind]
		hosts = max(hosts, kind.Hosts)
		if kind.HostsFor != nil {
			hosts = max(hosts, kind.HostsFor(c.Parameters))
		}
	}
	return hosts
}

// Case returns the case with a name, and reports whether there is one.
func (p *Plan) Case(name string) (Case, bool) {
	for _, c := range p.Cases {
		if c.Name == name {
			return c, true
		}
	}
	return Case{}, false
}

// NoCaseError is the error of Only for a name that no case has.
type NoCaseError struct{ Plan, Case string }

func (e NoCaseError) Error() string {
	return fmt.Sprintf("the plan %s has no case %q: 'berth bench plan' lists its cases", e.Plan, e.Case)
}

// named reports whether name is the case's name, its kind, or its Base.
func (c Case) named(name string) bool { return c.Name == name || c.Kind == name || c.Base == name }

// Has reports whether the plan has a case that Only would keep for this name.
func (p *Plan) Has(name string) bool {
	return slices.ContainsFunc(p.Cases, func(c Case) bool { return c.named(name) })
}

// Only keeps the cases with one of the names, which may also be a kind or a Base. If there
// are no names, it keeps all cases. It returns NoCaseError for a name without a case.
func (p *Plan) Only(names []string) error {
	if len(names) == 0 {
		return nil
	}
	var kept []Case
	for _, name := range names {
		before := len(kept)
		for _, c := range p.Cases {
			if c.named(name) {
				kept = append(kept, c)
			}
		}
		if len(kept) == before {
			return NoCaseError{p.Name, name}
		}
	}
	p.Cases = kept
	if !slices.ContainsFunc(kept, func(c Case) bool { return c.Name == p.Baseline.Case || c.Base == p.Baseline.Case }) {
		p.Baseline = Baseline{Drift: p.Baseline.Drift}
	}
	return nil
}

// Under keeps the cases that are measured with a link. An operator must have set up the
// link, because the bench runs without root. Under returns an error if the plan does not
// have the link.
func (p *Plan) Under(link string) error {
	known := strings.Join(slices.Sorted(maps.Keys(p.Links)), ", ")
	switch _, ok := p.Links[link]; {
	case len(p.Links) == 0 && link == "":
		return nil
	case len(p.Links) == 0:
		return fmt.Errorf("the plan %s has no links between the hosts: omit --link", p.Name)
	case link == "":
		return fmt.Errorf("the plan %s has links between the hosts (%s): give the one that is set up with --link", p.Name, known)
	case !ok:
		return fmt.Errorf("the plan %s has no link %q: it has %s", p.Name, link, known)
	}
	p.Link = link
	p.Cases = slices.DeleteFunc(p.Cases, func(c Case) bool { return c.Link != link })
	return nil
}

// links returns the names of the links for the trials: the one that is set up, or all. If
// the plan has no links, it returns one empty name.
func (p *Plan) links() []string {
	switch {
	case p.Link != "":
		return []string{p.Link}
	case len(p.Links) > 0:
		return slices.Sorted(maps.Keys(p.Links))
	}
	return []string{""}
}
