package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// samples are the values of one measure over all runs.
type samples struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Values []float64 `json:"values"`
}

func (s *samples) summarise() {
	sorted := slices.Sorted(slices.Values(s.Values))
	n := len(sorted)
	s.Min, s.Max = sorted[0], sorted[n-1]
	s.Median = (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// report prints a record as a table.
func report(to io.Writer, r record) {
	fmt.Fprintf(to, "%s on %s, %d CPUs (%s), %s, load %s\n\n", r.Version, r.Host.Kernel, r.Host.CPUs, r.Host.CPU, r.Host.Memory, r.Host.Load)
	fmt.Fprintf(to, "%-48s %9s %9s %9s\n", "", "median", "min", "max")
	for _, name := range slices.Sorted(maps.Keys(r.Cases)) {
		s := r.Cases[name]
		fmt.Fprintf(to, "%-48s %9.3f %9.3f %9.3f\n", name, s.Median, s.Min, s.Max)
	}
}
