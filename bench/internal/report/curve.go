package report

import (
	"cmp"
	"fmt"
	"image/color"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"berth.dev/berth/bench/internal/record"
)

// over is the parameter on the x axis of a curve.
const over = "nodes"

// Curve is a figure of one case as a function of the number of nodes.
type Curve struct {
	Case, Name, Unit string
	Lines            []Line
	SVG              string
}

// Line is one system of a curve.
type Line struct {
	System string
	Points []Point
	// Further is the increase of the figure with each further node: the median of the
	// slopes between all trials with different numbers of nodes (Theil-Sen estimator).
	Further float64
}

// Point summarises the trials with one number of nodes.
type Point struct {
	Nodes float64
	Summary
}

// curves adds a curve for each figure that was measured with several numbers of nodes.
func (r *Report) curves(lines []record.Line) {
	type which struct{ caseName, figure, system string }
	values := map[which]map[float64][]float64{}
	units := map[string]string{}
	var order []which
	for _, line := range lines {
		t := line.Trial
		if t == nil || t.Error != "" || t.Phase != record.Run {
			continue
		}
		n, err := strconv.ParseFloat(t.Parameters[over], 64)
		if err != nil {
			continue
		}
		for _, v := range t.Values {
			if v.Unit == record.Check {
				continue
			}
			at := which{strings.Replace(t.Case, " "+over+"="+t.Parameters[over], "", 1), v.Name, t.System}
			if values[at] == nil {
				values[at] = map[float64][]float64{}
				order = append(order, at)
			}
			values[at][n] = append(values[at][n], v.Value)
			units[v.Name] = v.Unit
		}
	}
	slices.SortStableFunc(order, func(a, b which) int {
		return cmp.Or(cmp.Compare(a.caseName, b.caseName), cmp.Compare(a.figure, b.figure), cmp.Compare(a.system, b.system))
	})
	for _, at := range order {
		if len(values[at]) < 2 {
			continue
		}
		if n := len(r.Curves); n == 0 || r.Curves[n-1].Case != at.caseName || r.Curves[n-1].Name != at.figure {
			r.Curves = append(r.Curves, Curve{Case: at.caseName, Name: at.figure, Unit: units[at.figure]})
		}
		c := &r.Curves[len(r.Curves)-1]
		c.Lines = append(c.Lines, line(at.system, values[at]))
	}
}

// line returns the line of a system. values holds its results by the number of nodes.
func line(system string, values map[float64][]float64) Line {
	l := Line{System: system}
	var slopes []float64
	for n, ys := range values {
		l.Points = append(l.Points, Point{Nodes: n, Summary: summarise(ys)})
		for m, others := range values {
			if m <= n {
				continue
			}
			for _, y := range ys {
				for _, other := range others {
					slopes = append(slopes, (other-y)/(m-n))
				}
			}
		}
	}
	slices.SortFunc(l.Points, func(a, b Point) int { return cmp.Compare(a.Nodes, b.Nodes) })
	slices.Sort(slopes)
	l.Further = (slopes[(len(slopes)-1)/2] + slopes[len(slopes)/2]) / 2
	return l
}

// lineColours are for systems of a curve, one after the other.
var lineColours = []color.RGBA{ //nolint:gochecknoglobals // a constant
	{R: 0x21, G: 0x71, B: 0xb5, A: 0xff}, {R: 0xcb, G: 0x18, B: 0x1d, A: 0xff}, {R: 0x23, G: 0x8b, B: 0x45, A: 0xff}, {R: 0x6a, G: 0x51, B: 0xa3, A: 0xff}, {R: 0xd9, G: 0x5f, B: 0x0e, A: 0xff},
}

// drawCurve draws the medians as lines, and every trial as a point. Both axes begin at
// zero.
func drawCurve(c Curve) (string, error) {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = over, c.Name+", "+c.Unit
	p.X.Min, p.Y.Min = 0, 0
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	for i, l := range c.Lines {
		var medians, all plotter.XYs
		for _, point := range l.Points {
			medians = append(medians, plotter.XY{X: point.Nodes, Y: point.Median})
			for _, v := range point.Values {
				all = append(all, plotter.XY{X: point.Nodes, Y: v})
			}
		}
		stroke, err := plotter.NewLine(medians)
		if err != nil {
			return "", fmt.Errorf("draw %s: %w", c.Name, err)
		}
		scatter, err := plotter.NewScatter(all)
		if err != nil {
			return "", fmt.Errorf("draw %s: %w", c.Name, err)
		}
		stroke.Color = lineColours[i%len(lineColours)]
		scatter.GlyphStyle = draw.GlyphStyle{Color: lineColours[i%len(lineColours)], Radius: vg.Points(2), Shape: draw.CircleGlyph{}}
		p.Add(stroke, scatter)
		p.Legend.Add(l.System, stroke)
	}
	return drawn(p, 8*vg.Centimeter, c.Name)
}
