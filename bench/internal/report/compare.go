package report

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"berth.dev/berth/bench/internal/record"
)

// Compare writes how the figures of b differ from those of a, on the same systems.
func Compare(to io.Writer, a, b []record.Line) error {
	before, err := model(a)
	if err != nil {
		return fmt.Errorf("the first records: %w", err)
	}
	after, err := model(b)
	if err != nil {
		return fmt.Errorf("the second records: %w", err)
	}
	table := tabwriter.NewWriter(to, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "case\tfigure\tsystem\tfirst\tsecond\tunit\tratio\t95 %\tp\t")
	var alone []string
	for _, g := range before.Groups {
		for _, f := range g.Figures {
			for _, row := range f.Rows {
				name := g.Name + ": " + f.Name + " on " + row.System
				other, ok := after.row(g.Name, f.Name, row.System)
				if !ok {
					alone = append(alone, name+" is only in the first")
					continue
				}
				r, ok := ratio(row.Values, other.Values)
				if !ok {
					alone = append(alone, name+" has values that are not above zero")
					continue
				}
				within := "too few runs"
				if r.HasInterval() {
					within = fmt.Sprintf("%.3f to %.3f", r.Low, r.High)
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%.3f\t%s\t%s\t%s\n", g.Name, f.Name, both(row, other),
					number(row.Median), number(other.Median), f.Unit, r.Value, within, number(r.P), verdict(r, true, f.Better))
			}
		}
	}
	for _, g := range after.Groups {
		for _, f := range g.Figures {
			for _, row := range f.Rows {
				if _, ok := before.row(g.Name, f.Name, row.System); !ok {
					alone = append(alone, g.Name+": "+f.Name+" on "+row.System+" is only in the second")
				}
			}
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the comparison: %w", err)
	}
	for _, line := range alone {
		fmt.Fprintln(to, "not compared:", line)
	}
	return nil
}

// both is the name of two rows of one system, with which of them is no fast path.
func both(first, second Row) string {
	switch {
	case first.Overlay == second.Overlay:
		return first.Label()
	case first.Overlay:
		return first.System + " (first: overlay)"
	}
	return first.System + " (second: overlay)"
}

func (r Report) row(group, figure, system string) (Row, bool) {
	for _, g := range r.Groups {
		for _, f := range g.Figures {
			i := slices.IndexFunc(f.Rows, func(row Row) bool { return row.System == system })
			if g.Name == group && f.Name == figure && i >= 0 {
				return f.Rows[i], true
			}
		}
	}
	return Row{}, false
}
