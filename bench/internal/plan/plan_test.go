package plan

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/bench/internal/record"
)

func known() Catalogue {
	seconds := func(map[string]string) float64 { return 1 }
	size := Parameter{Name: "size", Default: "10", Check: func(v string) error {
		if strings.Trim(v, "0123456789") != "" {
			return fmt.Errorf("give a number")
		}
		return nil
	}}
	return Catalogue{
		Cases: map[string]Kind{
			"cpu":     {Name: "cpu", Hosts: 1, Seconds: seconds, Parameters: []Parameter{size}},
			"network": {Name: "network", Hosts: 2, Seconds: seconds, Parameters: []Parameter{size}},
		},
		Drivers: map[string]Kind{"bare": {Name: "bare", Seconds: seconds}, "berth": {Name: "berth", Seconds: seconds}},
	}
}

const good = `name: a
seed: 7
cpus: 2
memory-mb: 100
repetitions: 3
systems:
- name: bare
- {name: mine, driver: berth}
cases:
- case: cpu
- {case: network, matrix: {size: ["1", "2"]}, repetitions: 2, systems: [mine]}
baseline: {case: cpu, repetitions: 1}
`

func TestParse(t *testing.T) {
	p, err := Parse("f", []byte(good), known())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range p.Cases {
		names = append(names, c.Name+" "+c.Parameters["size"]+" "+strings.Join(c.Systems, "+"))
	}
	want := []string{"cpu 10 bare+mine", "network size=1 1 mine", "network size=2 2 mine"}
	if !slices.Equal(names, want) || p.Hosts(known()) != 2 || p.Reference != "bare" || p.Baseline.Drift != 0.05 || p.WarmUps != 1 {
		t.Errorf("got %q, %+v", names, p)
	}
}

// TestMistakes: all of them at once, each with its line.
func TestMistakes(t *testing.T) {
	text := `name: No Name
seed: -1
memory-mb: 0
timeout: soon
reference: none
colour: red
systems:
- name: bare
- name: bare
- {name: x, driver: y, options: {a: b}}
cases:
- case: cpu
  parameters: {size: big, speed: "9"}
  systems: [z]
  repetitions: 0
- case: disk
- case: network
  parameters: {size: "1"}
  matrix: {size: ["2"]}
- case: cpu
baseline: {case: memory, drift: 7}
`
	_, err := Parse("f", []byte(text), known())
	want := []string{
		"f:2: cannot unmarshal !!int `-1` where something else is needed",
		"f:6: field colour is not known here",
		`f:1: name "No Name": give one of small letters, digits and dashes`,
		"f:1: cpus 0: say how many cores each trial gets",
		"f:3: memory-mb 0: say how much memory each trial gets, in MB",
		`f:4: timeout "soon": give a time such as 90s or 5m`,
		"f:9: there are two systems bare: give one of them another name",
		`f:10: there is no driver "y": there are bare, berth`,
		`f:5: reference "none" is none of the systems`,
		"f:15: repetitions 0: give 1 or more",
		"f:14: z is none of the plan's systems",
		`f:13: cpu has no "speed": it has size`,
		`f:13: cpu: size "big": give a number`,
		`f:16: there is no case "disk": there are cpu, network`,
		"f:19: size is among the parameters, too",
		"f:20: there are two cases cpu: give one of them another name",
		`f:21: baseline "memory" is none of the plan's cases`,
		"f:21: drift 7: give a part of one, such as 0.05",
	}
	if err == nil || err.Error() != strings.Join(want, "\n") {
		t.Errorf("got\n%v\nwant\n%s", err, strings.Join(want, "\n"))
	}
	for _, text := range []string{"", "a: [", "- x", "x"} {
		if _, err := Parse("f", []byte(text), known()); err == nil {
			t.Errorf("%q is taken for a plan", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = Parse("f", text, known()) })
}

func TestSchedule(t *testing.T) {
	p, err := Parse("f", []byte(good), known())
	if err != nil {
		t.Fatal(err)
	}
	order := p.Schedule()
	if !reflect.DeepEqual(order, p.Schedule()) {
		t.Error("the same plan has two orders")
	}
	seen := map[record.ID]bool{}
	round := 0
	for i, id := range order {
		if seen[id] {
			t.Errorf("%v is there twice", id)
		}
		seen[id] = true
		if id.Phase == record.WarmUp && i >= 4 {
			t.Errorf("the warm-up %v comes after trials that count", id)
		}
		// All of a round come before the next: systems take turns.
		if id.Phase == record.Run {
			if id.Number < round {
				t.Errorf("%v comes after round %d has begun", id, round)
			}
			round = id.Number
		}
	}
	// 4 warm-ups; 2 systems three times, 2 cases on one twice; 3 baselines.
	if len(order) != 4+6+4+3 {
		t.Errorf("%d trials", len(order))
	}
	if order[4].Phase != record.BaselineStart || order[len(order)-1].Phase != record.BaselineEnd {
		t.Errorf("the baselines are not where they should be: %v", order)
	}
	p.Seed = 8
	if reflect.DeepEqual(order, p.Schedule()) {
		t.Error("another seed has the same order")
	}
}

func TestRemaining(t *testing.T) {
	p, err := Parse("f", []byte(good), known())
	if err != nil {
		t.Fatal(err)
	}
	order := p.Schedule()
	var lines []record.Line
	for _, id := range order[:5] {
		lines = append(lines, record.Line{Trial: &record.Trial{Case: id.Case, System: id.System, Phase: id.Phase, Number: id.Number}})
	}
	if left := Remaining(order, lines); !reflect.DeepEqual(left, order[5:]) {
		t.Errorf("left are %v", left)
	}
	if err := p.Only([]string{"network"}); err != nil || len(p.Cases) != 2 || p.Baseline.Case != "" {
		t.Errorf("only the network: %+v, %v", p, err)
	}
	if err := p.Only([]string{"nothing"}); err == nil {
		t.Error("a case that is not there")
	}
}
