package report

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/bench/internal/record"
)

// Run is a recorded run, with the name of its folder.
type Run struct {
	Name  string
	Lines []record.Line
}

// notAtAll begins the reasons of rows that cannot be measured.
const notAtAll = "not a measurement"

const notMeasured = "not measured"

// Recorded makes one list of the papers' figures and tables for several runs:
// which runs have each, and its amounts. A figure that no run has gets the runs'
// reasons.
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
	counts := map[string]int{}
	for i, p := range each[0] {
		is, what := recorded(runs, each, i)
		counts[is]++
		fmt.Fprintf(&rows, "| %s | %s | %s | %s |\n", p.Paper, p.Item, cell(p.What), joinedBy(": ", is, what))
	}
	var page bytes.Buffer
	fmt.Fprintf(&page, `# The papers' figures and tables in the recorded runs

Of %d rows %d are measured as in the paper, %d measured otherwise, %d measured in part,
%d of only berth, %d of a profile that was not applied, %d not measured, and %d are no measurements.
'test/bench/publish' writes this page from the records.

| word | what it means |
| --- | --- |
| measured | all systems that the paper compares, with its programs and amounts |
| measured otherwise | the same systems, but other programs stand for them or for the paper's, or the amounts differ: both are named in the row |
| measured in part | at least one system of the paper's, and not all of them |
| only berth | berth, and bare metal, but no other system of the paper's |
| not applied | the profile changed no setting that can change the figure |

Amounts are from the records, with the paper's in brackets where they differ. Systems and links with
the same amounts are named together. Settings of a profile with * can change the figure. "So
before": the hosts had that value anyway. "Absent": the machine has no such file or ring, as it is
virtual.
"Not visible": the hosts of the bed are network namespaces, which do not show it, or it can only be
set.
Bridge Operator, HPK, Antrea and Cilium do not come along: they need root on the nodes, or a cluster
beside Slurm.

| paper | item | what | here |
| --- | --- | --- | --- |
`, len(each[0]), counts[asInPaper.String()], counts[otherwise.String()], counts[inPart.String()], counts[onlyBerth.String()], counts[notApplied.String()], counts[notMeasured], counts[notAtAll])
	page.Write(rows.Bytes())
	return page.Bytes(), nil
}

// recorded describes the runs that have a row, or the reasons why none has.
func recorded(runs []Run, each [][]Paper, row int) (is, what string) {
	static := each[0][row]
	var has, reasons []string
	best := notApplied
	for n, run := range runs {
		p := each[n][row]
		link := fmt.Sprintf("[%s](%s/report.md)", run.Name, run.Name)
		switch {
		case p.At != "":
			has = append(has, link+": "+cell(p.Has))
			best = min(best, p.Coverage)
		case static.Case != "" && !p.Elsewhere:
			addOnce(&reasons, link+": "+cell(p.Reason))
		}
	}
	note := cell(static.Note)
	switch {
	case has != nil:
		return best.String(), joined(append([]string{note}, has...)...)
	case reasons != nil:
		slices.Sort(reasons)
		return notMeasured, joined(append(reasons, "the plan "+static.Plan+" has it")...)
	case static.Case != "":
		return notMeasured, "the plan " + static.Plan + " has it, and no recorded run"
	}
	if strings.HasPrefix(static.Reason, notAtAll) {
		return notAtAll, ""
	}
	return notMeasured, cell(static.Reason)
}
