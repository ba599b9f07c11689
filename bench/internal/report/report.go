package report

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
	"strings"
	text "text/template"

	"berth.dev/berth/bench/internal/record"
)

//go:embed report.html.tmpl
var htmlTemplate string //nolint:gochecknoglobals // the only way to embed

//go:embed report.md.tmpl
var markdownTemplate string //nolint:gochecknoglobals // the only way to embed

// Make returns the content of a report's files by name: an HTML page, Markdown and CSV.
func Make(lines []record.Line) (map[string][]byte, error) {
	r, err := model(lines)
	if err != nil {
		return nil, err
	}
	for g := range r.Groups {
		for f := range r.Groups[g].Figures {
			figure := &r.Groups[g].Figures[f]
			if figure.SVG, err = chart(*figure); err != nil {
				return nil, err
			}
		}
		if d := r.Groups[g].Distribution; d != nil {
			if d.SVG, err = drawDistribution(*d); err != nil {
				return nil, err
			}
		}
	}
	for c := range r.Curves {
		if r.Curves[c].SVG, err = drawCurve(r.Curves[c]); err != nil {
			return nil, err
		}
	}
	functions := map[string]any{
		"number": number, "percent": percent, "interval": interval, "ratio": ratioText, "cell": cell, "share": shareText,
		"svg":    func(s string) template.HTML { return template.HTML(s) }, //nolint:gosec // our own
		"memory": func(b int64) string { return fmt.Sprintf("%.1f GB", float64(b)/1e9) },
	}
	page, err := template.New("html").Funcs(functions).Parse(htmlTemplate)
	if err != nil {
		return nil, fmt.Errorf("parse the page's template: %w", err)
	}
	markdown, err := text.New("markdown").Funcs(functions).Parse(markdownTemplate)
	if err != nil {
		return nil, fmt.Errorf("parse the Markdown's template: %w", err)
	}
	var html, plain, table bytes.Buffer
	if err := page.Execute(&html, r); err != nil {
		return nil, fmt.Errorf("write the page: %w", err)
	}
	if err := markdown.Execute(&plain, r); err != nil {
		return nil, fmt.Errorf("write the Markdown: %w", err)
	}
	if err := writeCSV(&table, lines); err != nil {
		return nil, err
	}
	return map[string][]byte{"report.html": html.Bytes(), "report.md": plain.Bytes(), "figures.csv": table.Bytes()}, nil
}

// writeCSV writes every value of every trial, warm-ups and baselines included.
func writeCSV(to io.Writer, lines []record.Line) error {
	table := csv.NewWriter(to)
	rows := [][]string{{"case", "kind", "system", "phase", "number", "node", "start", "seconds", "figure", "unit", "value", "error"}}
	for _, line := range lines {
		t := line.Trial
		if t == nil {
			continue
		}
		start := []string{
			t.Case, t.Kind, t.System, string(t.Phase), strconv.Itoa(t.Number), t.Step.Node,
			t.Start.UTC().Format("2006-01-02T15:04:05.000Z"), strconv.FormatFloat(t.Seconds, 'f', 3, 64),
		}
		if len(t.Values) == 0 {
			rows = append(rows, append(start, "", "", "", t.Error))
		}
		for _, v := range t.Values {
			rows = append(rows, append(start[:len(start):len(start)], v.Name, v.Unit, strconv.FormatFloat(v.Value, 'g', -1, 64), ""))
		}
	}
	if err := table.WriteAll(rows); err != nil {
		return fmt.Errorf("write the table of figures: %w", err)
	}
	return nil
}

// number formats a figure with four significant digits, but at most six after the point.
func number(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	digits := 0
	if v != 0 {
		digits = max(0, 3-int(math.Floor(math.Log10(math.Abs(v)))))
	}
	return strconv.FormatFloat(v, 'f', min(digits, 6), 64)
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

func interval(s Summary) string {
	if !s.HasInterval() {
		return "–"
	}
	return number(s.Low) + " to " + number(s.High)
}

func ratioText(r Row) string {
	switch {
	case !r.HasRatio:
		return ""
	case !r.Ratio.HasInterval():
		return times(r.Ratio.Value)
	}
	return fmt.Sprintf("%s (%s to %s)", times(r.Ratio.Value), times(r.Ratio.Low), times(r.Ratio.High))
}

// shareText returns a remark about a row's fast path, to show beside its name.
func shareText(r Row) string {
	switch {
	case r.Overlay && r.Share == "":
		return "overlay, not fast path: its connections were not counted"
	case r.Overlay:
		return "overlay, not fast path: hosts made " + r.Share + " of the connections"
	case r.Share != "":
		return strings.TrimSuffix(r.Share, ",") + " by the hosts"
	}
	return ""
}

// times formats a ratio. The larger it is, the fewer digits it has after the point.
func times(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// cell escapes text for a cell of a Markdown table.
func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;").Replace(s)
}
