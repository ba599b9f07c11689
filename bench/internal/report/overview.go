package report

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Overview holds the figures that a plan wants at a glance, with all systems side
// by side in the plan's order.
type Overview struct {
	Systems []string
	Rows    []OverviewRow
}

// OverviewRow is a figure of a case, with a cell for each system.
type OverviewRow struct {
	Case, CaseAnchor, Figure, Anchor, Unit string
	Cells                                  []OverviewCell
}

// OverviewCell is a system's median, and beside it the ratio to the reference's. The cell of
// the reference, or of a figure that is itself a ratio, has the median's interval instead.
type OverviewCell struct{ Median, Beside, Verdict string }

// overview returns the overview, or nil if the plan lists no figures for it, or none of them
// was measured.
func (r *Report) overview() (*Overview, error) {
	var plan struct {
		Overview []string
		Systems  []struct{ Name string }
	}
	if err := yaml.Unmarshal([]byte(r.Plan), &plan); err != nil {
		return nil, fmt.Errorf("read the plan %s of the records: %w", r.Name, err)
	}
	o := &Overview{}
	for _, s := range plan.Systems {
		if slices.Contains(r.Systems, s.Name) {
			o.Systems = append(o.Systems, s.Name)
		}
	}
	for _, name := range plan.Overview {
		for _, g := range r.Groups {
			for _, f := range g.Figures {
				if f.Name != name {
					continue
				}
				row := OverviewRow{Case: g.Name, CaseAnchor: g.Anchor, Figure: f.Name, Anchor: f.Anchor, Unit: f.Unit}
				for _, system := range o.Systems {
					row.Cells = append(row.Cells, f.cell(system))
				}
				o.Rows = append(o.Rows, row)
			}
		}
	}
	if o.Rows == nil {
		return nil, nil
	}
	return o, nil
}

func (f Figure) cell(system string) OverviewCell {
	i := slices.IndexFunc(f.Rows, func(row Row) bool { return row.System == system })
	if i < 0 {
		return OverviewCell{Median: "–"}
	}
	row := f.Rows[i]
	c := OverviewCell{Median: number(row.Median)}
	if row.Overlay {
		c.Median += " (overlay, not fast path)"
	}
	switch {
	case row.HasRatio && f.Unit != ofTimes:
		c.Beside, c.Verdict = "× "+ratioText(row), row.Verdict
	case row.HasInterval():
		c.Beside = interval(row.Summary)
	}
	return c
}

// ofTimes is the unit of figures that are ratios already.
const ofTimes = "times"
