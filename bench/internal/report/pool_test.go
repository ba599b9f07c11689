package report

import (
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/record"
)

// records returns a session at a minute of the day, with a few trials.
func records(minute int, change func(*record.Session, *record.Trial)) []record.Line {
	at := time.Date(2026, 11, 22, 12, minute, 0, 0, time.UTC)
	s := record.Session{
		Name: "x", Title: "x", Reference: "bare", Plan: "cpus: 2\nmemory-mb: 1000\nsystems: [{name: bare}]\n", Versions: map[string]string{"berth": "1"},
		Nodes: []record.Machine{{Name: "n1", CPU: "A", CPUs: 2, Memory: 8e9, Kernel: "6.1", Load: "0.10 0.10 0.10 1/2 3"}},
	}
	var lines []record.Line
	for n := range 6 {
		t := record.Trial{
			Case: "cpu", Kind: "cpu", System: "bare", Phase: record.Run, Number: n + 1, Start: at.Add(time.Duration(n) * time.Second),
			Parameters: map[string]string{"seconds": "1"}, Values: []record.Value{{Name: "events", Unit: "1/s", Value: 10 + float64(n)}},
		}
		change(&s, &t)
		lines = append(lines, record.Line{Time: t.Start, Trial: &t})
	}
	return append([]record.Line{{Time: at, Session: &s}}, lines...)
}

func asIs(*record.Session, *record.Trial) {}

// TestNotPooled: duplicate trials, and trials under other conditions, are no further
// trials of a row.
func TestNotPooled(t *testing.T) {
	once := records(0, asIs)
	alone := slices.Clone(once)
	alone[0].Time = alone[0].Time.Add(time.Hour) // the same trials in another session
	for name, test := range map[string]struct {
		second []record.Line
		want   string
	}{
		"the same file":    {once, "the session of 2026-11-22 12:00:00 (plan x) is given twice: give each file of records once"},
		"the same trials":  {alone, "the trial run 1 of cpu on bare (2026-11-22 12:00:00) is given twice"},
		"other parameters": {records(1, func(_ *record.Session, t *record.Trial) { t.Parameters = map[string]string{"seconds": "30"} }), "cpu was measured under two conditions (parameter seconds: 1; 30)"},
		"a new parameter":  {records(1, func(_ *record.Session, t *record.Trial) { t.Parameters = map[string]string{"seconds": "1", "x": "2"} }), "(parameter x: none; 2)"},
		"another case":     {records(1, func(_ *record.Session, t *record.Trial) { t.Kind = "memory" }), "(case: cpu; memory)"},
		"another machine": {
			records(1, func(s *record.Session, _ *record.Trial) { s.Nodes[0].CPU = "B" }),
			"(machines: 2 × A, 8.0 GB, 6.1; 2 × B, 8.0 GB, 6.1)",
		},
		"another build": {records(1, func(s *record.Session, _ *record.Trial) { s.Versions["berth"] = "2" }), "(berth: 1; 2)"},
		"another link": {
			records(1, func(s *record.Session, _ *record.Trial) { s.Link = &record.Link{Name: "slow", Is: "1 Gbit/s"} }),
			"(link: none; slow: 1 Gbit/s)",
		},
		"fewer cores": {records(1, func(s *record.Session, _ *record.Trial) { s.Plan = strings.Replace(s.Plan, "cpus: 2", "cpus: 1", 1) }), "(of each trial cpus: 2; 1)"},
		"another option": {records(1, func(s *record.Session, _ *record.Trial) {
			s.Plan = strings.Replace(s.Plan, "{name: bare}", "{name: bare, driver: podman}", 1)
		}), "(the system bare: name: bare; driver: podman, name: bare)"},
	} {
		_, err := Make(slices.Concat(once, test.second))
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Count(err.Error(), "\n") > mostFaults {
			t.Errorf("%s: want %q, got %v", name, test.want, err)
		}
	}
	// An interrupted or repeated run has further trials.
	again := records(1, func(s *record.Session, _ *record.Trial) { s.Nodes[0].Name, s.Versions["podman"] = "n2", "4" })
	other := records(2, func(_ *record.Session, t *record.Trial) {
		t.Case, t.Parameters = "cpu-long", map[string]string{"seconds": "30"}
	})
	files, err := Make(slices.Concat(once, again, other))
	if err != nil || !strings.Contains(string(files["report.md"]), "| bare | 12 |") || !strings.Contains(string(files["report.md"]), "| bare | 6 |") {
		t.Errorf("the same conditions: %v\n%s", err, files["report.md"])
	}
}

// TestCompareDifferentConditions: a comparison begins with the other differences of the two, and
// does not compare cases with different parameters.
func TestCompareDifferentConditions(t *testing.T) {
	first := slices.Concat(records(0, asIs), records(1, func(_ *record.Session, t *record.Trial) { t.Case = "cpu-long" }))
	change := func(caseName, seconds string) func(*record.Session, *record.Trial) {
		return func(s *record.Session, t *record.Trial) {
			s.Nodes[0].CPU, s.Nodes[0].Kernel, s.Versions["berth"] = "B", "6.2", "2"
			t.Case, t.Parameters = caseName, map[string]string{"seconds": seconds}
		}
	}
	second := slices.Concat(records(2, change("cpu", "1")), records(3, change("cpu-long", "30")))
	var out strings.Builder
	if err := Compare(&out, first, second); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{
		"differs: machines: 2 × A, 8.0 GB, 6.1; 2 × B, 8.0 GB, 6.2\ndiffers: berth: 1; 2\ncase ",
		"\ncpu   events", "not compared: cpu-long is another case in the second (parameter seconds: 1; 30)\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "only in") || strings.Contains(text, "\ncpu-long") {
		t.Errorf("got\n%s", text)
	}
}
