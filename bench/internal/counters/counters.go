// Package counters reads who made the connections of a node's pods: the hosts, by the
// fast path, or the overlay. Who asks for the page belongs elsewhere.
package counters

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"berth.dev/berth/bench/internal/record"
)

// Family begins the counters on a node's page of metrics.
const Family = "berth_fastpath_total{"

// Elsewhere is why a connection within a node, or to the page of counters itself, is
// not the hosts'.
const Elsewhere = "the address is no other node's pod"

// Counts are connections that a node's pods began.
type Counts struct {
	// Made are those that the hosts have made.
	Made float64
	// Left are those that were left to the overlay, by the reason.
	Left map[string]float64
}

// Read reads a page. One without counters is of a node that has made no connection, or
// has no fast path at all.
func Read(page string) (Counts, error) {
	c := Counts{Left: map[string]float64{}}
	for line := range strings.Lines(page) {
		name, value, found := strings.Cut(strings.TrimSpace(line), "} ")
		_, outcome, is := strings.Cut(name, `outcome="`)
		if !found || !is || !strings.HasPrefix(name, Family) {
			continue
		}
		outcome, _, _ = strings.Cut(outcome, `"`)
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return c, fmt.Errorf("read the counters of connections: %w", err)
		}
		reason, overlay := strings.CutPrefix(outcome, "overlay: ")
		switch {
		case outcome == "connected", outcome == "connected to the outside":
			c.Made += n
		case overlay && reason != "not TCP":
			c.Left[reason] += n
		}
	}
	return c, nil
}

// Since is what was counted after an earlier reading by a pod of that node. Between them
// is the connection by which the first was read; whether its own, or that of the second,
// was counted in time nobody knows: three or more are others'.
func (c Counts) Since(earlier Counts) Counts {
	d := Counts{Made: c.Made - earlier.Made, Left: maps.Clone(c.Left)}
	for reason := range d.Left {
		d.Left[reason] -= earlier.Left[reason]
	}
	if d.Left[Elsewhere]--; d.Left[Elsewhere] < 2 {
		d.Left[Elsewhere] = 0
	}
	maps.DeleteFunc(d.Left, func(_ string, n float64) bool { return n <= 0 })
	return d
}

// Add adds another node's.
func (c *Counts) Add(other Counts) {
	c.Made += other.Made
	if c.Left == nil {
		c.Left = map[string]float64{}
	}
	for reason, n := range other.Left {
		c.Left[reason] += n
	}
}

// Share is which part of the connections the hosts have made, but for those of some
// reasons. That nothing was counted where counters were read is no proof of the fast path.
func (c Counts) Share(but ...string) []record.Value {
	part := 0.0
	if c.Made > 0 {
		left := maps.Clone(c.Left)
		for _, reason := range but {
			delete(left, reason)
		}
		all := c.Made
		for _, n := range left {
			all += n
		}
		part = 100 * c.Made / all
	}
	return []record.Value{{Name: record.Share, Unit: "%", Better: "higher", Value: part}}
}
