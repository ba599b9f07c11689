package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"berth.dev/berth/bench/internal/record"
)

// Compare writes how the figures of b differ from the figures of a, on the same
// systems. It begins with the other differences, of machines and builds, and ends
// with the figures that it does not compare. Cases with other parameters are
// other cases.
func Compare(to io.Writer, a, b []record.Line) error {
	before, err := model(a)
	if err != nil {
		return fmt.Errorf("the first records: %w", err)
	}
	after, err := model(b)
	if err != nil {
		return fmt.Errorf("the second records: %w", err)
	}
	between, apart := before.between(after)
	for _, line := range between {
		fmt.Fprintln(to, "differs:", line)
	}
	table := tabwriter.NewWriter(to, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "case\tfigure\tsystem\tfirst\tsecond\tunit\tratio\t95 %\tp\t")
	var alone []string
	for _, g := range before.Groups {
		if apart[g.Name] != "" {
			alone = append(alone, fmt.Sprintf("%s is another case in the second (%s)", g.Name, apart[g.Name]))
			continue
		}
		if !after.has(g.Name) {
			alone = append(alone, g.Name+" is only in the first")
			continue
		}
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
		if apart[g.Name] != "" {
			continue
		}
		if !before.has(g.Name) {
			alone = append(alone, g.Name+" is only in the second")
			continue
		}
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

// between returns the differences between two reports besides their figures, and
// the reason for each case that is not the same in both in spite of its name.
func (r Report) between(other Report) (differs []string, apart map[string]string) {
	apart = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(r.cases)) {
		first, second := r.cases[name], other.cases[name]
		if second.kind == "" {
			continue
		}
		if another := first.another(second); another != nil {
			apart[name] = strings.Join(another, "; and ")
			continue
		}
		for _, line := range first.differences(second.conditions) {
			if !slices.Contains(differs, line) {
				differs = append(differs, line)
			}
		}
	}
	return differs, apart
}

// both returns the label of two rows of one system. If only one row describes the overlay
// instead of the fast path, the label names that row.
func both(first, second Row) string {
	switch {
	case first.Overlay == second.Overlay:
		return first.Label()
	case first.Overlay:
		return first.System + " (first: overlay)"
	}
	return first.System + " (second: overlay)"
}

func (r Report) has(group string) bool {
	return slices.ContainsFunc(r.Groups, func(g Group) bool { return g.Name == group })
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
