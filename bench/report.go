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

// goals are what the design sets out for, on two quiet cores.
var goals = map[string]float64{
	"berth version, s":            0.02,
	"usable control plane, s":     0.7,
	"first line of a pod, s":      1.2,
	"first line to exit, s":       0.5,
	"50 pods running, s":          5,
	"end with 50 pods, s":         2,
	"idle CPU, % of a core":       4,
	"idle PSS of all roles, MB":   450,
	"PSS growth per idle pod, MB": 10,

	"3 nodes: srun to the last node's first output, s": 2,
	"CPU of the head per further node, s":              0.1,
	"memory of a worker without pods, MB":              220,
}

// report prints a record as a table.
func report(to io.Writer, r record) {
	fmt.Fprintf(to, "%s on %s, %d CPUs (%s), %s, load %s\n\n", r.Version, r.Host.Kernel, r.Host.CPUs, r.Host.CPU, r.Host.Memory, r.Host.Load)
	fmt.Fprintf(to, "%-48s %9s %9s %9s %9s\n", "", "median", "min", "max", "goal")
	for _, name := range slices.Sorted(maps.Keys(r.Cases)) {
		s := r.Cases[name]
		goal := ""
		if g, ok := goals[name]; ok {
			goal = fmt.Sprint(g)
		}
		fmt.Fprintf(to, "%-48s %9.3f %9.3f %9.3f %9s\n", name, s.Median, s.Min, s.Max, goal)
	}
}
