package cases

import (
	"math"
	"testing"

	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

// TestProcessorTimeOfAllRoundTrips uses sockperf's output for 68,747 round
// trips, whose own figures cover only 34,711.
func TestProcessorTimeOfAllRoundTrips(t *testing.T) {
	const said = `sockperf: [Total Run] RunTime=1.000 sec; Warm up time=400 msec; SentMessages=68748; ReceivedMessages=68747
sockperf: [Valid Duration] RunTime=0.550 sec; SentMessages=34711; ReceivedMessages=34711
sockperf: ====> avg-rtt=15.801 (std-dev=6.341)
sockperf: ---> <MAX> observation =  813.363
sockperf: ---> percentile 99.900 =   29.869
sockperf: ---> percentile 99.000 =   20.589
sockperf: ---> percentile 90.000 =   17.709
sockperf: ---> percentile 50.000 =   15.569
sockperf: ---> <MIN> observation =    9.979
`
	want := map[string]float64{"median round trip": 15.569, "99.9th percentile": 29.869, "longest": 813.363, "machine's CPU time per 1000 round trips": 1.26 / 68.747}
	values, err := latency().Read(nil, system.Output{Stdout: said, Step: record.Step{Window: &record.Window{Busy: 1.26}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		if of, there := want[v.Name]; there && math.Abs(v.Value-of) > 1e-9 {
			t.Errorf("%s: %g, want %g", v.Name, v.Value, of)
		}
		delete(want, v.Name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

// TestProcessorTimeOfMemory: the processor time is divided by the bytes that all
// instances have read and written.
func TestProcessorTimeOfMemory(t *testing.T) {
	const said = `stress-ng: info:  [31] stream: memory rate: 20000.00 MB read/sec, 10000.00 MB write/sec, 1676.39 double precision Mflop/sec (instance 0)
stress-ng: info:  [32] stream: memory rate: 20000.00 MB read/sec, 10000.00 MB write/sec, 2052.90 double precision Mflop/sec (instance 1)
`
	values, err := memory().Read(map[string]string{"seconds": "5"}, system.Output{Stdout: said, Step: record.Step{Window: &record.Window{Busy: 9}}})
	if err != nil || len(values) != 2 || values[0].Value != 60000 || values[1].Value != 9.0/300 {
		t.Errorf("%+v, %v", values, err)
	}
}
