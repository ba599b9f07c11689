package report

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"berth.dev/berth/bench/internal/record"
)

// percents lists the percentiles of a distribution. The last one is the longest
// time of all.
var percents = []float64{50, 75, 90, 99, 99.9, 99.99, 100} //nolint:gochecknoglobals // a constant

// Distribution holds the times of a case's round trips or connections: for each
// system the time within which each percentage was over.
type Distribution struct {
	// Columns holds the names of the percentiles.
	Columns []string
	Rows    []Spread
	SVG     string
}

// Spread is the row of one system.
type Spread struct {
	System string
	// Runs is the number of trials.
	Runs int
	// Times holds the time for each percentile, in µs: the median of the trials, or NaN
	// if a trial has too few times to know the percentile.
	Times []float64
}

// quantile is a percentage of all times, and the time in µs within which it was
// over.
type quantile struct{ percent, time float64 }

// distributions sets the distributions of groups whose programs print their
// times.
func (r *Report) distributions(lines []record.Line) {
	type which struct{ caseName, system string }
	trials := map[which][][]float64{}
	for _, line := range lines {
		t := line.Trial
		if t == nil || t.Error != "" || t.Phase != record.Run {
			continue
		}
		if all := quantiles(t); len(all) > 0 {
			at := which{t.Case, t.System}
			trials[at] = append(trials[at], timesAt(all))
		}
	}
	for g := range r.Groups {
		var d Distribution
		for _, system := range r.Systems {
			runs := trials[which{r.Groups[g].Name, system}]
			if len(runs) == 0 {
				continue
			}
			row := Spread{System: system, Runs: len(runs)}
			for i := range percents {
				var known []float64
				for _, times := range runs {
					if !math.IsNaN(times[i]) {
						known = append(known, times[i])
					}
				}
				// If some trials lack a percentile, the median of the others would
				// mislead.
				middle := math.NaN()
				if len(known) == len(runs) {
					middle = summarise(known).Median
				}
				row.Times = append(row.Times, middle)
			}
			d.Rows = append(d.Rows, row)
		}
		if len(d.Rows) == 0 {
			continue
		}
		for _, p := range percents {
			d.Columns = append(d.Columns, strconv.FormatFloat(p, 'g', -1, 64)+" %")
		}
		d.Columns[len(d.Columns)-1] = "longest"
		r.Groups[g].Distribution = &d
	}
}

// quantiles returns the times that the program of a trial printed, in ascending
// order. It returns none for other programs.
func quantiles(t *record.Trial) []quantile {
	switch t.Kind {
	case "latency":
		return fromSockperf(t.Output)
	case "connections":
		return fromFortio(t.Output)
	}
	return nil
}

var sockperfTimes = regexp.MustCompile(`(?m)---> (?:percentile ([0-9.]+)|<(MAX|MIN)> observation) = +([0-9.]+)`) //nolint:gochecknoglobals // a constant

// fromSockperf parses sockperf's table of percentiles, which begins with the longest time.
func fromSockperf(text string) (all []quantile) {
	for _, match := range sockperfTimes.FindAllStringSubmatch(text, -1) {
		percent := map[string]string{"MAX": "100", "MIN": "0", "": match[1]}[match[2]]
		p, err1 := strconv.ParseFloat(percent, 64)
		time, err2 := strconv.ParseFloat(match[3], 64)
		if err1 != nil || err2 != nil {
			return nil
		}
		all = append(all, quantile{p, time})
	}
	slices.Reverse(all)
	return all
}

// fromFortio parses fortio's histogram.
func fromFortio(text string) (all []quantile) {
	var said struct {
		DurationHistogram struct {
			Data []struct{ Start, End, Percent float64 }
		}
	}
	if json.Unmarshal([]byte(text), &said) != nil {
		return nil
	}
	for i, bin := range said.DurationHistogram.Data {
		if i == 0 {
			all = append(all, quantile{0, bin.Start * 1e6})
		}
		all = append(all, quantile{bin.Percent, bin.End * 1e6})
	}
	return all
}

// timesAt returns the times at the percents, interpolated between the known ones.
func timesAt(all []quantile) []float64 {
	times := make([]float64, len(percents))
	for i, percent := range percents {
		times[i] = math.NaN()
		at := slices.IndexFunc(all, func(q quantile) bool { return q.percent >= percent })
		switch {
		case at < 0:
		case at == 0 || all[at].percent == percent:
			times[i] = all[at].time
		default:
			from, to := all[at-1], all[at]
			times[i] = from.time + (to.time-from.time)*(percent-from.percent)/(to.percent-from.percent)
		}
	}
	return times
}

// drawDistribution returns a chart with a line for each system, as an SVG. The scale is
// logarithmic, because the longest times exceed the median by orders of magnitude.
func drawDistribution(d Distribution) (string, error) {
	p := plot.New()
	p.Y.Label.Text = "µs"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Add(plotter.NewGrid())
	for i, row := range d.Rows {
		var points plotter.XYs
		for at, time := range row.Times {
			if time > 0 { // false for NaN, too; neither has a logarithm
				points = append(points, plotter.XY{X: float64(at), Y: time})
			}
		}
		if len(points) == 0 {
			continue
		}
		stroke, err := plotter.NewLine(points)
		if err != nil {
			return "", fmt.Errorf("draw the distribution of %s: %w", row.System, err)
		}
		stroke.Color, stroke.Dashes = lineColours[i%len(lineColours)], plotutil.Dashes(i/len(lineColours))
		p.Add(stroke)
		p.Legend.Add(row.System, stroke)
	}
	p.NominalX(d.Columns...)
	return drawn(p, 8*vg.Centimeter, "a distribution")
}
