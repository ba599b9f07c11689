package record

import (
	"fmt"
	"slices"
	"strings"
)

// memoryApart is the largest relative difference of memory between machines of one kind.
// The firmware and the kernel reserve amounts that differ between them.
const memoryApart = 0.02

// alike reports whether two machines have the same processors and kernel, and nearly the
// same memory. Only these affect figures, so names and boot IDs are ignored.
func (m Machine) alike(other Machine) bool {
	apart := max(m.Memory-other.Memory, other.Memory-m.Memory)
	return m.CPU == other.CPU && m.CPUs == other.CPUs && m.Kernel == other.Kernel &&
		float64(apart) <= memoryApart*float64(max(m.Memory, other.Memory))
}

// kind describes the machine's processors, memory and kernel.
func (m Machine) kind() string {
	return fmt.Sprintf("%d × %s, %.1f GB, %s", m.CPUs, m.CPU, float64(m.Memory)/1e9, m.Kernel)
}

// SameMachines reports whether two sets of machines consist of the same kinds, in any
// numbers.
func SameMachines(a, b []Machine) bool {
	within := func(some, all []Machine) bool {
		return !slices.ContainsFunc(some, func(m Machine) bool { return !slices.ContainsFunc(all, m.alike) })
	}
	return within(a, b) && within(b, a)
}

// Kinds describes the kinds of the machines, each once.
func Kinds(machines []Machine) string {
	var kinds []string
	for _, m := range machines {
		if !slices.Contains(kinds, m.kind()) {
			kinds = append(kinds, m.kind())
		}
	}
	return strings.Join(kinds, " and ")
}
