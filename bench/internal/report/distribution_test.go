package report

import (
	"math"
	"strings"
	"testing"

	"berth.dev/berth/bench/internal/record"
)

const sockperfSays = `
sockperf: ---> <MAX> observation =  800.000
sockperf: ---> percentile 99.900 =   30.000
sockperf: ---> percentile 99.000 =   20.000
sockperf: ---> percentile 90.000 =   17.000
sockperf: ---> percentile 75.000 =   16.000
sockperf: ---> percentile 50.000 =   15.000
sockperf: ---> percentile 25.000 =   14.000
sockperf: ---> <MIN> observation =   10.000
`

// TestDistributions: the times that programs print become one line for each system.
func TestDistributions(t *testing.T) {
	var lines []record.Line
	trial := func(caseName, kind, output string) {
		lines = append(lines, record.Line{Trial: &record.Trial{Case: caseName, Kind: kind, System: "berth", Phase: record.Run, Output: output}})
	}
	trial("trips", "latency", sockperfSays)
	trial("trips", "latency", strings.ReplaceAll(sockperfSays, "800.000", "1000.000"))
	trial("whole", "connections", `{"DurationHistogram": {"Data": [
		{"Start": 0.0001, "End": 0.0002, "Percent": 40}, {"Start": 0.0002, "End": 0.0003, "Percent": 60}, {"Start": 0.001, "End": 0.002, "Percent": 100}]}}`)
	trial("other", "cpu", sockperfSays)
	r := Report{Systems: []string{"bare", "berth"}, Groups: []Group{{Name: "trips"}, {Name: "whole"}, {Name: "other"}}}
	r.distributions(lines)
	if r.Groups[2].Distribution != nil || len(r.Groups[0].Distribution.Rows) != 1 {
		t.Fatalf("got %+v", r.Groups)
	}
	row := r.Groups[0].Distribution.Rows[0]
	if row.Runs != 2 || row.Times[0] != 15 || row.Times[4] != 30 || row.Times[6] != 900 {
		t.Errorf("round trips: %+v", row)
	}
	times := r.Groups[1].Distribution.Rows[0].Times
	if math.Abs(times[0]-250) > 1e-6 || math.Abs(times[6]-2000) > 1e-6 {
		t.Errorf("connections: %v", times)
	}
	svg, err := drawDistribution(*r.Groups[0].Distribution)
	if err != nil || !strings.HasPrefix(svg, "<svg") {
		t.Errorf("got %.40q, %v", svg, err)
	}
	for _, text := range []string{"", "no times", `{"DurationHistogram": {}}`} {
		if len(fromSockperf(text))+len(fromFortio(text)) > 0 {
			t.Errorf("%q has times", text)
		}
	}
}

// TestSmallFiles: a file that fits into memory is reported.
func TestSmallFiles(t *testing.T) {
	r := Report{memory: 1 << 30}
	for size, small := range map[string]bool{"128m": true, "1G": true, "2g": false, "8G": false, "": false, "x": false} {
		said := r.smallFile(&record.Trial{Kind: "storage", Parameters: map[string]string{"size": size}})
		if (said != "") != small {
			t.Errorf("%q: %q", size, said)
		}
	}
	if said := r.smallFile(&record.Trial{Kind: "cpu"}); said != "" {
		t.Error(said)
	}
}
