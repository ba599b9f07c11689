package record

import (
	"fmt"
	"slices"
	"strings"
)

// memoryApart is the relative difference of memory between machines of one kind:
// firmware and kernel keep different amounts.
const memoryApart = 0.02

// alike reports whether two machines are of one kind as far as it affects
// figures: processors, memory and kernel. Names and boots do not count.
func (m Machine) alike(other Machine) bool {
	apart := max(m.Memory-other.Memory, other.Memory-m.Memory)
	return m.CPU == other.CPU && m.CPUs == other.CPUs && m.Kernel == other.Kernel &&
		float64(apart) <= memoryApart*float64(max(m.Memory, other.Memory))
}

// kind describes the machine's kind.
func (m Machine) kind() string {
	return fmt.Sprintf("%d × %s, %.1f GB, %s", m.CPUs, m.CPU, float64(m.Memory)/1e9, m.Kernel)
}

// SameMachines reports whether two sets of machines have the same kinds.
func SameMachines(a, b []Machine) bool {
	within := func(some, all []Machine) bool {
		return !slices.ContainsFunc(some, func(m Machine) bool { return !slices.ContainsFunc(all, m.alike) })
	}
	return within(a, b) && within(b, a)
}

// Kinds lists the kinds of machines, each once.
func Kinds(machines []Machine) string {
	var kinds []string
	for _, m := range machines {
		if !slices.Contains(kinds, m.kind()) {
			kinds = append(kinds, m.kind())
		}
	}
	return strings.Join(kinds, " and ")
}
