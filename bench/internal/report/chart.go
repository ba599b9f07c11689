package report

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Sizes of a chart.
const (
	chartWidth = 15 * vg.Centimeter
	rowHeight  = 0.85 * vg.Centimeter
	restHeight = 1.7 * vg.Centimeter
)

// chart returns a figure as an SVG: for each system a row with every value as a point, the
// median as a stroke, and its interval as a bar. The axis begins at zero, so that lengths
// can be compared.
func chart(f Figure) (string, error) {
	p := plot.New()
	p.X.Label.Text = f.Unit
	p.X.Min = 0
	p.X.Padding, p.Y.Padding = 0, 4
	p.Y.Width = 0
	var names []string
	points := plotter.XYs{}
	medians := plotter.XYs{}
	greatest := 0.0
	for i := range f.Rows {
		// The first system is at the top.
		row := f.Rows[len(f.Rows)-1-i]
		names = append(names, row.Label())
		at := float64(i)
		for n, value := range row.Values {
			points = append(points, plotter.XY{X: value, Y: at + apartBy(n)})
			greatest = math.Max(greatest, value)
		}
		medians = append(medians, plotter.XY{X: row.Median, Y: at})
		if row.HasInterval() {
			bar, err := plotter.NewPolygon(plotter.XYs{
				{X: row.Low, Y: at - 0.3}, {X: row.High, Y: at - 0.3}, {X: row.High, Y: at + 0.3}, {X: row.Low, Y: at + 0.3},
			})
			if err != nil {
				return "", fmt.Errorf("draw %s: %w", f.Name, err)
			}
			bar.Color = color.RGBA{R: 0xc6, G: 0xdb, B: 0xef, A: 0xff}
			bar.Width = 0
			p.Add(bar)
		}
	}
	if greatest == 0 {
		greatest = 1
	}
	p.X.Max = greatest * 1.05
	scatter, err := plotter.NewScatter(points)
	if err != nil {
		return "", fmt.Errorf("draw %s: %w", f.Name, err)
	}
	scatter.GlyphStyle = draw.GlyphStyle{Color: color.RGBA{R: 0x21, G: 0x71, B: 0xb5, A: 0xff}, Radius: vg.Points(2), Shape: draw.CircleGlyph{}}
	strokes, err := plotter.NewScatter(medians)
	if err != nil {
		return "", fmt.Errorf("draw %s: %w", f.Name, err)
	}
	strokes.GlyphStyle = draw.GlyphStyle{Color: color.RGBA{R: 0xcb, G: 0x18, B: 0x1d, A: 0xff}, Radius: rowHeight / 3, Shape: stroke{}}
	grid := plotter.NewGrid()
	grid.Horizontal.Width = 0
	p.Add(grid, scatter, strokes)
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -0.5, float64(len(names))-0.5
	return drawn(p, restHeight+rowHeight*vg.Length(len(names)), f.Name)
}

// drawn returns a chart as an SVG.
func drawn(p *plot.Plot, height vg.Length, name string) (string, error) {
	canvas := vgsvg.New(chartWidth, height)
	// The last number of the axis extends past its end.
	p.Draw(draw.Crop(draw.New(canvas), 0, -0.4*vg.Centimeter, 0, 0))
	var text bytes.Buffer
	if _, err := canvas.WriteTo(&text); err != nil {
		return "", fmt.Errorf("draw %s: %w", name, err)
	}
	// An SVG inside a page has no XML header.
	_, svg, _ := strings.Cut(text.String(), "<svg")
	return "<svg role=\"img\" " + svg, nil
}

// apartBy returns the vertical offset of the nth point, which keeps equal values apart. It
// is not random, so that a report is a function of its records.
func apartBy(n int) float64 { return []float64{0, 0.09, -0.09, 0.18, -0.18}[n%5] }

// stroke is a glyph: a vertical line.
type stroke struct{}

// DrawGlyph draws the line, with its middle at a point.
func (stroke) DrawGlyph(c *draw.Canvas, style draw.GlyphStyle, at vg.Point) {
	c.SetLineStyle(draw.LineStyle{Color: style.Color, Width: vg.Points(1.5)})
	var path vg.Path
	path.Move(vg.Point{X: at.X, Y: at.Y - style.Radius})
	path.Line(vg.Point{X: at.X, Y: at.Y + style.Radius})
	c.Stroke(path)
}
