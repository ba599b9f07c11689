// Package counters parses the counters of connections on a node's page of metrics: those
// that the hosts made (the fast path), and those on the overlay. Callers fetch the page.
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

// Elsewhere is the reason for a connection whose peer is no pod of another node, such as
// the connection that fetches the page.
const Elsewhere = "the address is no other node's pod"

// Counts holds the numbers of connections that a node's pods have made.
type Counts struct {
	// Made counts connections made by the hosts.
	Made float64
	// Left counts connections left to the overlay, by reason.
	Left map[string]float64
}

// Read parses a page. It returns no counts for a node that has made no connection or has no
// fast path, and an error for a counter that is not a number.
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

// Since returns the counts minus the counts that a pod of the node has read earlier. The
// difference includes the connection of the earlier reading, and possibly the one of this
// reading. So three or more mean that another program has made connections.
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

// Share returns the share of connections that the hosts made, in %. It omits connections on
// the overlay with one of the reasons. Without any connection the share is 0, because nothing
// proves the fast path.
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
