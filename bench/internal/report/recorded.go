package report

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/bench/internal/record"
)

// Run is a run that was kept, by the name of its folder.
type Run struct {
	Name  string
	Lines []record.Line
}

// notAtAll begins the reasons of what nobody could measure.
const notAtAll = "not a measurement"

// Recorded is one list of the papers' figures and tables for several runs: which of them
// has each, and how much of it. A figure that is in none has the reasons that runs gave.
func Recorded(runs []Run) ([]byte, error) {
	var each [][]Paper
	for _, run := range runs {
		of, err := papers(run.Lines)
		if err != nil {
			return nil, fmt.Errorf("the run %s: %w", run.Name, err)
		}
		each = append(each, of)
	}
	if each == nil {
		return nil, fmt.Errorf("there are no runs")
	}
	var rows bytes.Buffer
	measured, partly, not, none := 0, 0, 0, 0
	for i, p := range each[0] {
		is, what := recorded(runs, each, i)
		switch is {
		case "measured":
			measured++
		case "measured in part":
			partly++
		case notAtAll:
			none++
		default:
			not++
		}
		fmt.Fprintf(&rows, "| %s | %s | %s | %s |\n", p.Paper, p.Item, cell(p.What), joinedBy(": ", is, what))
	}
	var page bytes.Buffer
	fmt.Fprintf(&page, `# The papers' figures and tables in the recorded runs

Of %d rows %d are measured on all systems that they name, %d on some of them, %d not, and %d are no measurements. No row says that it has all that the paper has:
how long, how large, and how many runs there were is said, and in brackets what the paper has, where it says so. 'test/bench/publish' writes this page from the records.

| paper | item | what | here |
| --- | --- | --- | --- |
`, measured+partly+not+none, measured, partly, not, none)
	page.Write(rows.Bytes())
	return page.Bytes(), nil
}

// recorded says in which runs a row is, or why in none.
func recorded(runs []Run, each [][]Paper, row int) (is, what string) {
	static := each[0][row]
	var has, reasons []string
	partly := true
	for n, run := range runs {
		p := each[n][row]
		link := fmt.Sprintf("[%s](%s/report.md)", run.Name, run.Name)
		switch {
		case p.At != "":
			has = append(has, link+": "+cell(p.Has))
			partly = partly && p.Partly
		case static.Case != "" && !p.Elsewhere:
			once(&reasons, link+": "+cell(p.Reason))
		}
	}
	note := cell(static.Note)
	switch {
	case has != nil && partly:
		return "measured in part", joined(append([]string{note}, has...)...)
	case has != nil:
		return "measured", joined(append([]string{note}, has...)...)
	case reasons != nil:
		slices.Sort(reasons)
		return "not measured", joined(append(reasons, "the plan "+static.Plan+" has it")...)
	case static.Case != "":
		return "not measured", "the plan " + static.Plan + " has it, and no recorded run"
	}
	if strings.HasPrefix(static.Reason, notAtAll) {
		return notAtAll, ""
	}
	return "not measured", cell(static.Reason)
}
