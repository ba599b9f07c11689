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

// Kind is a case or a driver that a plan may name.
type Kind struct {
	Name       string
	Summary    string
	Parameters []Parameter
	// Hosts is the number of machines for one trial.
	Hosts int
	// HostsFor returns the number if it depends on parameters; otherwise nil.
	HostsFor func(parameters map[string]string) int
	// Seconds estimates how long one trial takes; for a driver, how much it adds.
	Seconds func(parameters map[string]string) float64
	// Images is set for cases that deliver images. Packing is the additional time of a
	// driver for these.
	Images  bool
	Packing float64
	// Together is set if a driver adds its time once for several cases.
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

// Plan is a file that was read. Every field has its value, defaults included.
type Plan struct {
	Text        string
	Name        string
	Title       string
	Seed        uint64
	Repetitions int
	WarmUps     int
	// CPUs and MemoryMB are each trial's share of each host.
	CPUs     int
	MemoryMB int
	// Timeout limits the duration of a trial.
	Timeout time.Duration
	// Together makes the cases of a system follow one another in each round. A system
	// that supports it runs them in one container or cluster.
	Together bool
	// Links describes, by name, how an operator sets up the network between the
	// hosts.
	Links map[string]Link
	// Link is the name of the link that is set up; see Under.
	Link      string
	Reference string
	Baseline  Baseline
	Systems   []System
	Cases     []Case

	// rounds is the maximum number of repetitions of the plan's cases, including
	// skipped cases.
	rounds int
}

// Link is a setup of the network between the hosts and of the hosts. 'berth
// bench link' applies the fields other than Is.
type Link struct {
	// Is describes the link in words.
	Is string `yaml:"is"`
	// MTU, Offloads, Rate and Loss have the values of ip, ethtool and tc; empty keeps
	// the current ones. Offloads stands for tso and gso. With "off" it includes gro,
	// which "on" leaves unchanged.
	MTU      int    `yaml:"mtu"`
	Offloads string `yaml:"offloads"`
	Rate     string `yaml:"rate"`
	Loss     string `yaml:"loss"`
	// Profile is a tuning profile.
	Profile string `yaml:"profile"`
	// SameHost: client and server are on the first host.
	SameHost bool `yaml:"same-host"`

	unknown []string
}

// String describes the link.
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

// Wanted returns the settings of a link under the names that records use. A rate is a
// part of a queue's description.
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

// UnmarshalYAML reads a link, which may consist of words only.
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
// middle and at the end, to see whether the machine stayed the same. Without a
// name there is none.
type Baseline struct {
	Case        string  `yaml:"case"`
	Repetitions int     `yaml:"repetitions"`
	Drift       float64 `yaml:"drift"`
}

// System is a driver with its options, under the name that figures have.
type System struct {
	Name    string
	Driver  string
	Options map[string]string
}

// Case is a case with all of its parameters, under the name that figures have.
type Case struct {
	Name        string
	Kind        string
	Systems     []string
	Repetitions int
	WarmUps     int
	Parameters  map[string]string
	// Base is the name without what a matrix or a link adds.
	Base string
	// Link is the name of the link between the hosts, if the plan has links.
	Link string
	// Against is the case whose figures of the reference are compared with this one's;
	// empty for this case itself.
	Against string

	against string
	variant map[string]string
}

// Hosts returns the number of machines that the plan needs at a time.
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

// Case returns the case with a name.
func (p *Plan) Case(name string) (Case, bool) {
	for _, c := range p.Cases {
		if c.Name == name {
			return c, true
		}
	}
	return Case{}, false
}

// NoCaseError is the error if a plan has no case with a name.
type NoCaseError struct{ Plan, Case string }

func (e NoCaseError) Error() string {
	return fmt.Sprintf("the plan %s has no case %q: 'berth bench plan' lists its cases", e.Plan, e.Case)
}

// named reports whether a case, its kind, or its name without the matrix has the name.
func (c Case) named(name string) bool { return c.Name == name || c.Kind == name || c.Base == name }

// Has reports whether the plan has a case that Only would keep.
func (p *Plan) Has(name string) bool {
	return slices.ContainsFunc(p.Cases, func(c Case) bool { return c.named(name) })
}

// Only keeps the cases with these names, or whose kinds have them.
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

// Under keeps the cases that are measured with a link. An operator must have set the
// link up, because the bench runs without root.
func (p *Plan) Under(link string) error {
	known := strings.Join(slices.Sorted(maps.Keys(p.Links)), ", ")
	switch _, ok := p.Links[link]; {
	case len(p.Links) == 0 && link == "":
		return nil
	case len(p.Links) == 0:
		return fmt.Errorf("the plan %s has no links between the hosts: leave out --link", p.Name)
	case link == "":
		return fmt.Errorf("the plan %s has links between the hosts (%s): say with --link which one is set up", p.Name, known)
	case !ok:
		return fmt.Errorf("the plan %s has no link %q: it has %s", p.Name, link, known)
	}
	p.Link = link
	p.Cases = slices.DeleteFunc(p.Cases, func(c Case) bool { return c.Link != link })
	return nil
}

// links returns the names of the links for the trials; without links, one empty
// name.
func (p *Plan) links() []string {
	switch {
	case p.Link != "":
		return []string{p.Link}
	case len(p.Links) > 0:
		return slices.Sorted(maps.Keys(p.Links))
	}
	return []string{""}
}
