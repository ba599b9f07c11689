package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// samples are the values of one measure over all runs.
type samples struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// Low and High bound the median with 95 %, where there are enough values.
	Low    float64   `json:"low,omitempty"`
	High   float64   `json:"high,omitempty"`
	Values []float64 `json:"values"`
}

func (s *samples) summarise() {
	sorted := slices.Sorted(slices.Values(s.Values))
	n := len(sorted)
	s.Min, s.Max = sorted[0], sorted[n-1]
	s.Median = (sorted[(n-1)/2] + sorted[n/2]) / 2
	if low, high, ok := medianBounds(n); ok {
		s.Low, s.High = sorted[low], sorted[high]
	}
}

// medianBounds are the ranks of n sorted values between which the median lies
// with at least 95 %: the binomial distribution with one half. There are none
// for fewer than six.
func medianBounds(n int) (low, high int, ok bool) {
	below := 1.0
	for range n {
		below /= 2
	}
	for term, sum := below, below; sum <= 0.025; low++ {
		term *= float64(n-low) / float64(low+1)
		sum += term
		ok = true
	}
	low = max(0, low-1)
	return low, n - 1 - low, ok
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

	"login: the first berth kubectl get pods, s":          0.6,
	"login: berth kubectl get pods through the tunnel, s": 0.2,
	"login: berth kubectl exec to the first output, s":    0.8,
	"state: 2,000 objects saved, s":                       0.3,
	"state: start with them to a pod that runs, s":        2,

	"3 nodes: srun to the last node's first output, s": 2,
	"CPU of the head per further node, s":              0.1,
	"memory of a worker without pods, MB":              220,

	"mtu1500/offloads=true/tcp1/udp: x-overlay-CPU-s/GB": 2.5,
	"mtu9000/offloads=true/tcp1/udp: x-overlay-CPU-s/GB": 2.5,
	"mtu9000/offloads=true/udp/udp: x-overlay-CPU-s/GB":  1.1,
	"mtu1500/offloads=true/rtt/udp: x-overlay-p50-us":    1.7,
}

// report prints a record as a table.
func report(to io.Writer, r record) {
	fmt.Fprintf(to, "%s on %s, %d CPUs (%s), %s, load %s\n\n", r.Version, r.Host.Kernel, r.Host.CPUs, r.Host.CPU, r.Host.Memory, r.Host.Load)
	fmt.Fprintf(to, "%-58s %9s %9s %9s %9s %9s %9s\n", "", "median", "min", "max", "95 % from", "to", "goal")
	for _, name := range slices.Sorted(maps.Keys(r.Cases)) {
		s := r.Cases[name]
		goal := ""
		if g, ok := goals[name]; ok {
			goal = fmt.Sprint(g)
		}
		low, high := "", ""
		if s.High != 0 {
			low, high = fmt.Sprintf("%.3f", s.Low), fmt.Sprintf("%.3f", s.High)
		}
		fmt.Fprintf(to, "%-58s %9.3f %9.3f %9.3f %9s %9s %9s\n", name, s.Median, s.Min, s.Max, low, high, goal)
	}
}
