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
	// Made counts connections made by the hosts.
	Made float64
	// Left counts connections left to the overlay, by reason.
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

// Since returns the counts after an earlier reading by a pod of that node. They
// include the connection of the first reading, and it is unknown whether that or
// the second reading's was counted in time. So three or more connections are
// others'.
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

// Share returns the hosts' share of the connections, except the ones left for
// some reasons. Counters of zero are no proof of the fast path.
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
