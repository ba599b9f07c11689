package report

import (
	"strings"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/record"
)

// TestDisturbedAtTheStart: a run that began on an overloaded machine is marked, with or
// without a baseline. Load of the bench itself, before a further session, does not count.
func TestDisturbedAtTheStart(t *testing.T) {
	begin := func(load string, cpus, processors int) []record.Line {
		lines := records(0, func(s *record.Session, t *record.Trial) {
			s.Nodes[0].Load, s.Nodes[0].CPUs = load, cpus
			t.Step.Window = &record.Window{Processors: processors}
		})
		return lines
	}
	const mark = "on n1, 22 November 2026, 12:00 UTC, the load was "
	for name, test := range map[string]struct {
		lines []record.Line
		want  string
	}{
		"quiet":                {begin("1.90 1.80 9.00 1/2 3", 2, 2), ""},
		"busy":                 {begin("2.10 1.00 1.00 1/2 3", 2, 2), mark + "2.10 in the last minute and 1.00 in the last five, on 2 processors"},
		"busy until now":       {begin("1.14 4.92 11.35 3/210 130", 1, 2), mark + "1.14 in the last minute and 4.92 in the last five, on 2 processors"},
		"one of two cores":     {begin("1.31 1.72 1.84 1/214 172", 1, 2), ""},
		"large machine":        {begin("35.00 30.00 20.00 1/2 3", 64, 64), ""},
		"no load is known":     {begin("", 2, 2), ""},
		"what is not a number": {begin("much more 1/2", 2, 2), ""},
	} {
		files, err := Make(test.lines)
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range []string{"report.md", "report.html"} {
			text := string(files[form])
			if strings.Contains(text, "Disturbed at the start") != (test.want != "") || !strings.Contains(text, test.want) {
				t.Errorf("%s, %s: want %q in\n%.600s", name, form, test.want, text)
			}
		}
	}
	// The next link of a plan, and a run that was continued much later.
	for after, want := range map[time.Duration]int{time.Minute: 0, time.Hour: 1} {
		lines := begin("0.10 0.10 0.10 1/2 3", 2, 2)
		next := begin("5.00 5.00 5.00 1/2 3", 2, 2)[0]
		next.Time = lines[len(lines)-1].Time.Add(after)
		if got := disturbed(append(lines, record.Line{CutOff: 8}, next)); len(got) != want {
			t.Errorf("a session %v later: %v", after, got)
		}
	}
}
