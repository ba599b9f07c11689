package report

import (
	"strings"
	"testing"

	"berth.dev/berth/bench/internal/record"
)

// TestCurves: a case with several numbers of nodes is one curve, with the cost of each
// further node.
func TestCurves(t *testing.T) {
	var lines []record.Line
	for nodes, y := range map[string]float64{"1": 1, "3": 2, "11": 6} {
		lines = append(lines, record.Line{Trial: &record.Trial{
			Case: "scale nodes=" + nodes, System: "berth", Phase: record.Run, Parameters: map[string]string{"nodes": nodes},
			Values: []record.Value{{Name: "time", Unit: "s", Value: y}, {Name: "RQ3", Unit: record.Check, Value: 1}},
		}})
	}
	lines = append(lines, record.Line{Trial: &record.Trial{
		Case: "once", System: "berth", Phase: record.Run, Parameters: map[string]string{"nodes": "2"}, Values: []record.Value{{Name: "time", Unit: "s", Value: 1}},
	}})
	var r Report
	r.curves(lines)
	if len(r.Curves) != 1 || r.Curves[0].Case != "scale" || len(r.Curves[0].Lines) != 1 {
		t.Fatalf("got %+v", r.Curves)
	}
	l := r.Curves[0].Lines[0]
	if l.Further != 0.5 || len(l.Points) != 3 || l.Points[2].Nodes != 11 {
		t.Errorf("got %+v", l)
	}
	svg, err := drawCurve(r.Curves[0])
	if err != nil || !strings.HasPrefix(svg, "<svg") {
		t.Errorf("got %.40q, %v", svg, err)
	}
}
