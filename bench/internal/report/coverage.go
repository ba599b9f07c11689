package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/bench/internal/record"
)

// coverage grades how far a paper's row was measured, from all of it to none.
type coverage int

const (
	asInPaper coverage = iota + 1
	otherwise
	inPart
	onlyBerth
	notApplied
)

func (v coverage) String() string {
	return map[coverage]string{
		asInPaper: "measured", otherwise: "measured otherwise", inPart: "measured in part", onlyBerth: "only berth", notApplied: "not applied",
	}[v]
}

// judge returns how far trials of these systems cover the figure. Amounts or programs that differ
// from the paper's are enough for otherwise.
func (p Paper) judge(systems []string, differ bool, tuned profileState) coverage {
	found, peers := 0, false
	for of := range p.Of {
		if p.has(of, systems) {
			found++
			peers = peers || of != "bare metal"
		}
	}
	switch {
	case p.Profile != "" && p.Profile != noProfile && !tuned.applied(p.Parameters["protocol"]):
		return notApplied
	case !peers:
		return onlyBerth
	case found < len(p.Of):
		return inPart
	case differ || p.Note != "":
		return otherwise
	}
	return asInPaper
}

// has reports whether a system of the paper, or its substitute, is among systems.
func (p Paper) has(of string, systems []string) bool {
	return slices.ContainsFunc(p.Of[of], func(substitute string) bool { return slices.Contains(systems, substitute) })
}

// noProfile is the profile that changes nothing.
const noProfile = "default"

// profileState holds the names of a profile's settings by their state on the first host: in
// effect and different from before (changed), in effect as before (same), another value in effect
// (other), a device without the setting (absent), or a setting that could not be read (unseen).
type profileState struct{ changed, same, other, absent, unseen []string }

// readTunings returns the states of the profiles of links, by the links' names.
// It compares each with the first link of the profile default.
func readTunings(lines []record.Line) map[string]profileState {
	before := map[string]string{}
	for _, line := range lines {
		if s := line.Session; s != nil && s.Link != nil && len(s.Nodes) > 0 && profileOf(s.Link.Is) == noProfile && len(before) == 0 {
			before = s.Nodes[0].Settings
		}
	}
	all := map[string]profileState{}
	for _, line := range lines {
		s := line.Session
		if s == nil || s.Link == nil || len(s.Nodes) == 0 || profileOf(s.Link.Is) == "" || profileOf(s.Link.Is) == noProfile {
			continue
		}
		var state profileState
		for _, name := range slices.Sorted(maps.Keys(s.Link.Wanted)) {
			settings := s.Nodes[0].Settings
			key := keyOf(settings, name)
			is, was := inForce(settings[key]), inForce(before[key])
			switch {
			case name == "mtu":
			case is == "" && (strings.HasPrefix(name, "devices/") || strings.HasSuffix(name, " ring")):
				state.absent = append(state.absent, name)
			case is == "":
				state.unseen = append(state.unseen, name)
			case is != s.Link.Wanted[name]:
				state.other = append(state.other, name)
			case is == was:
				state.same = append(state.same, name)
			default:
				state.changed = append(state.changed, name)
			}
		}
		all[s.Link.Name] = state
	}
	return all
}

// keyOf returns the key of a setting. The keys of an interface's settings begin with the interface's
// name.
func keyOf(settings map[string]string, name string) string {
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if link, ok := strings.CutPrefix(key, record.LinkSetting); ok && strings.HasSuffix(link, " "+name) {
			return key
		}
	}
	return name
}

// inForce returns the value of a setting. If a file shows all possible values, it returns the one in
// brackets, which is in effect.
func inForce(value string) string {
	value = strings.Join(strings.Fields(value), " ")
	if _, rest, brackets := strings.Cut(value, "["); brackets {
		value, _, _ = strings.Cut(rest, "]")
	}
	return value
}

// decisive reports whether a setting can change the bandwidth or latency of a protocol between two
// hosts: what the processors do while they wait, buffers, acknowledgements, offloads and rings.
func decisive(name, protocol string) bool {
	if rest, tcp := strings.CutPrefix(name, "net/ipv4/tcp_"); tcp {
		return protocol != "udp" && slices.Contains([]string{"rmem", "wmem", "sack", "window_scaling"}, rest)
	}
	return name == "cpu_dma_latency" || name == "net/ipv4/udp_mem" && protocol != "tcp" || strings.HasPrefix(name, "devices/") ||
		strings.HasPrefix(name, "net/core/") || !strings.Contains(name, "/") // of the interface
}

// applied reports whether a decisive setting was changed.
func (s profileState) applied(protocol string) bool {
	return slices.ContainsFunc(s.changed, func(name string) bool { return decisive(name, protocol) })
}

// words describes the settings of a profile by their state, the decisive ones first and with an
// asterisk.
func (s profileState) words(protocol string) string {
	var parts []string
	say := func(what string, names []string) {
		if len(names) == 0 {
			return
		}
		first := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !decisive(name, protocol) })
		rest := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return decisive(name, protocol) })
		for i := range first {
			first[i] += "*"
		}
		parts = append(parts, fmt.Sprintf("%s: %s", what, strings.Join(append(first, rest...), ", ")))
	}
	say("in effect", s.changed)
	say("so before", s.same)
	say("another value", s.other)
	say("absent", s.absent)
	say("not visible", s.unseen)
	return strings.Join(parts, "; ")
}
