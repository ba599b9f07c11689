// Package counters parses the page of a node's metrics that counts which connections of
// pods the hosts made (the fast path), and which use the overlay. Callers fetch the page.
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

// Elsewhere is the reason for a connection that stays within the node, such as the
// one to the page itself.
const Elsewhere = "the address is no other node's pod"

// Counts holds the numbers of connections that a node's pods have made.
type Counts struct {
	// Made counts connections made by the hosts.
	Made float64
	// Left counts connections left to the overlay, by reason.
	Left map[string]float64
}

// Read parses a page. A page without counters belongs to a node that has made no
// connection, or has no fast path.
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

// Since returns the connections after an earlier reading by a pod of the node. They
// include the connection of the first reading, and possibly that of the second. So
// other programs made some of them if there are three or more.
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

// Add adds the counts of another node.
func (c *Counts) Add(other Counts) {
	c.Made += other.Made
	if c.Left == nil {
		c.Left = map[string]float64{}
	}
	for reason, n := range other.Left {
		c.Left[reason] += n
	}
}

// Share returns the share of connections that the hosts made, not counting
// connections left for some reasons. If nothing was counted, the fast path is not
// proven.
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
