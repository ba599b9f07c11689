package top

import (
	"slices"
	"strings"
	"unicode/utf8"
)

type alignment int

const (
	left alignment = iota
	right
)

// column is a column of a table. On a narrow terminal the columns with the
// highest number are dropped first; columns with 0 stay.
type column struct {
	title string
	align alignment
	spare int
}

// table is rows of cells in columns.
type table struct {
	columns []column
	rows    []row
}

type row struct {
	look  style
	cells []string
}

// gap is the space between two columns.
const gap = 2

func (View) table(columns ...column) *table { return &table{columns: columns} }

func (t *table) add(look style, cells ...string) {
	for i := range cells {
		cells[i] = clean(cells[i])
	}
	t.rows = append(t.rows, row{look, cells})
}

// lines lays the table out in a view's width.
func (t *table) lines(v View) []string {
	shown := t.fit(v.Width)
	widths := t.widths()
	line := func(look style, cells func(int) string) string {
		var text strings.Builder
		for at, i := range shown {
			cell := cells(i)
			pad := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell)))
			if t.columns[i].align == right {
				cell = pad + cell
			} else if at < len(shown)-1 {
				cell += pad
			}
			if at > 0 {
				text.WriteString(strings.Repeat(" ", gap))
			}
			text.WriteString(cell)
		}
		return v.paint(look, cut(text.String(), v.Width))
	}
	lines := []string{line(bold, func(i int) string { return t.columns[i].title })}
	for _, r := range t.rows {
		lines = append(lines, line(r.look, func(i int) string { return r.cells[i] }))
	}
	return lines
}

func (t *table) widths() []int {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		widths[i] = utf8.RuneCountInString(c.title)
		for _, r := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r.cells[i]))
		}
	}
	return widths
}

// fit returns the columns that fit into a width; 0 takes all.
func (t *table) fit(width int) []int {
	widths := t.widths()
	var shown []int
	for i := range t.columns {
		shown = append(shown, i)
	}
	for width > 0 {
		sum := -gap
		first := -1
		for _, i := range shown {
			sum += widths[i] + gap
			if t.columns[i].spare > 0 && (first < 0 || t.columns[i].spare >= t.columns[first].spare) {
				first = i
			}
		}
		if sum <= width || first < 0 {
			break
		}
		shown = slices.DeleteFunc(shown, func(i int) bool { return i == first })
	}
	return shown
}
