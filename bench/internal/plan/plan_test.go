package plan

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/bench/internal/fuzzbound"
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

// TestMistakes: all mistakes are reported at once, each with its line.
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
		`f:1: name "No Name": give one of lowercase letters, digits and dashes`,
		"f:1: cpus 0: give the number of cores of each trial",
		"f:3: memory-mb 0: give the memory of each trial in MB",
		`f:4: timeout "soon": give a time such as 90s or 5m`,
		"f:9: there are two systems bare: give one of them another name",
		`f:10: there is no driver "y": there are bare, berth`,
		`f:5: reference "none" is not one of the systems`,
		"f:15: repetitions 0: give 1 or more",
		"f:14: z is not one of the plan's systems",
		`f:13: cpu has no "speed": it has size`,
		`f:13: cpu: size "big": give a number`,
		`f:16: there is no case "disk": there are cpu, network`,
		"f:19: size is among the parameters, too",
		"f:20: there are two cases cpu: give one of them another name",
		`f:21: baseline "memory" is not one of the plan's cases`,
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
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzbound.Watch(t)
		_, _ = Parse("f", text, known())
	})
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
		// All trials of a round come before the next round.
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

const linked = `name: a
seed: 7
cpus: 2
memory-mb: 100
repetitions: 3
warm-ups: 0
together: true
links: {plain: nothing special, slow: 1 Gbit/s}
systems:
- name: bare
- {name: mine, driver: berth}
- {name: other, driver: berth}
cases:
- {name: hosts, case: network, links: [plain, slow], systems: [bare], matrix: {size: ["1", "2"]}}
- {name: pods, case: network, links: [plain, slow], against: hosts, systems: [mine, other], matrix: {size: ["1", "2"]}}
- {name: own, case: cpu, links: [plain]}
baseline: {case: hosts, repetitions: 1}
`

func TestLinks(t *testing.T) {
	p, err := Parse("f", []byte(linked), known())
	if err != nil {
		t.Fatal(err)
	}
	against := map[string]string{}
	for _, c := range p.Cases {
		against[c.Name] = c.Against
	}
	if len(against) != 9 || against["pods link=slow size=2"] != "hosts link=slow size=2" || against["hosts link=slow size=2"] != "" {
		t.Errorf("got %v", against)
	}
	all := p.Schedule()
	for link, want := range map[string]error{"": errors.New("plain, slow"), "fast": errors.New("it has plain, slow"), "slow": nil} {
		err := p.Under(link)
		if (err == nil) != (want == nil) || err != nil && !strings.Contains(err.Error(), want.Error()) {
			t.Errorf("under %q: %v", link, err)
		}
	}
	// 2 cases on one system and 2 on two, three times, and three baselines.
	order := p.Schedule()
	if len(order) != 3*6+3 || len(all) != 2*len(order)+3*3 {
		t.Errorf("%d trials of %d", len(order), len(all))
	}
	for _, id := range order {
		if !strings.Contains(id.Case, "link=slow") || !slices.Contains(all, id) {
			t.Errorf("%v is made with the link slow", id)
		}
	}
	if err := p.Only([]string{"pods"}); err != nil || len(p.Cases) != 2 || p.Baseline.Case != "" {
		t.Errorf("by the name without link and matrix: %+v, %v", p.Cases, err)
	}
	if err := (&Plan{Name: "a"}).Under("slow"); err == nil || !strings.Contains(err.Error(), "omit --link") {
		t.Errorf("a plan without links: %v", err)
	}
}

// TestTogether: the trials of a system in a round are adjacent, and the order of the
// systems still changes.
func TestTogether(t *testing.T) {
	p, err := Parse("f", []byte(linked), known())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Under("plain"); err != nil {
		t.Fatal(err)
	}
	var order []record.ID
	for _, id := range p.Schedule() {
		if id.Phase == record.Run {
			order = append(order, id)
		}
	}
	turns, rounds := 0, map[int]string{}
	for i, id := range order {
		if i == 0 || order[i-1].System != id.System || order[i-1].Number != id.Number {
			turns++
			rounds[id.Number] += " " + id.System
		}
	}
	if turns != 3*3 || rounds[1] == rounds[2] && rounds[2] == rounds[3] {
		t.Errorf("%d turns of three systems in three rounds: %v", turns, rounds)
	}
}

func TestMistakesOfLinks(t *testing.T) {
	text := strings.NewReplacer("links: {plain", "links: {No Name: x, plain", "links: [plain], against", "links: [plain]",
		"{name: own, case: cpu, links: [plain]}", "{name: own, case: cpu}", "against: hosts", "against: nobody",
		"links: [plain, slow], systems: [bare]", "links: [plain, fast], systems: [bare]").Replace(linked)
	_, err := Parse("f", []byte(text), known())
	if err == nil {
		t.Fatal("nothing is wrong")
	}
	for _, want := range []string{
		`f:8: link name "No Name"`, "fast is not one of the plan's links", "own: say under which of the plan's links it is measured",
		`pods link=plain size=1 is against "nobody", and 0 cases`, `baseline "hosts" is not among the plan's cases with each link`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the mistakes lack %q:\n%v", want, err)
		}
	}
}

// TestBaselineOfEachLinkIsOnReference: the case of a baseline may be measured on other
// systems with one link than with another one.
func TestBaselineOfEachLinkIsOnReference(t *testing.T) {
	const of = "- {name: hosts, case: network, links: [plain, slow], systems: [bare], matrix: {size: [\"1\", \"2\"]}}\n"
	const pods = "- {name: pods, case: network, links: [plain, slow], against: hosts, systems: [mine, other], matrix: {size: [\"1\", \"2\"]}}\n"
	for link, other := range map[string]string{"plain": "slow", "slow": "plain"} {
		text := strings.NewReplacer(of, "- {name: hosts, case: network, links: ["+link+"], systems: [mine]}\n"+
			"- {name: hosts, case: network, links: ["+other+"], systems: [bare]}\n", pods, "").Replace(linked)
		want := "the case hosts link=" + link + " is not measured on bare, the reference"
		if _, err := Parse("f", []byte(text), known()); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
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

// TestSpread: cases with fewer repetitions are spread over the whole run, even
// if only they are selected, so that changes of the machine affect all cases.
func TestSpread(t *testing.T) {
	text := strings.NewReplacer("repetitions: 3", "repetitions: 6", "- {name: own, case: cpu, links: [plain]}", `- {name: own, case: cpu, links: [plain], repetitions: 2}
- {name: once, case: cpu, links: [plain], repetitions: 1}`).Replace(linked)
	for _, only := range [][]string{nil, {"own", "once"}} {
		p, err := Parse("f", []byte(text), known())
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(p.Under("plain"), p.Only(only)); err != nil {
			t.Fatal(err)
		}
		in := map[string][]int{}
		for _, id := range p.Schedule() {
			if id.System == "mine" && id.Phase == record.Run {
				in[id.Case] = append(in[id.Case], id.Number)
			}
		}
		if !slices.Equal(in["own link=plain"], []int{2, 5}) || !slices.Equal(in["once link=plain"], []int{3}) {
			t.Errorf("only %v: in rounds %v", only, in)
		}
		if pods := in["pods link=plain size=1"]; only == nil && len(pods) != 6 {
			t.Errorf("others are in %v", pods)
		}
	}
}

// TestAgainstAnotherLink: jobs with another network stand beside jobs on the
// hosts' network, which are measured under another link.
func TestAgainstAnotherLink(t *testing.T) {
	for links, want := range map[string]string{"[plain]": "hosts link=plain size=1", "[plain, slow]": "hosts link=slow size=1"} {
		text := strings.NewReplacer("links: [plain, slow], systems: [bare]", "links: "+links+", systems: [bare]",
			"links: [plain, slow], against: hosts, systems: [mine, other]", "links: [slow], against: hosts, systems: [bare]",
			"baseline: {case: hosts, repetitions: 1}\n", "").Replace(linked)
		p, err := Parse("f", []byte(text), known())
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := p.Case("pods link=slow size=1"); !ok || c.Against != want {
			t.Errorf("%s: against %q, want %q", links, c.Against, want)
		}
	}
	// For other systems, the hosts' figures under that link are missing.
	text := strings.NewReplacer("links: [plain, slow], systems: [bare]", "links: [plain], systems: [bare]",
		"baseline: {case: hosts, repetitions: 1}\n", "").Replace(linked)
	if _, err := Parse("f", []byte(text), known()); err == nil || !strings.Contains(err.Error(), `pods link=slow size=1 is against "hosts", and 0 cases`) {
		t.Errorf("a link that the hosts are not measured under: %v", err)
	}
}

// TestWanted: what a link asks for has the names that records have.
func TestWanted(t *testing.T) {
	got, err := Link{MTU: 9000, Offloads: "off", Loss: "0.1%", Profile: "kernel-optimizations"}.Wanted()
	for name, want := range map[string]string{"mtu": "9000", "tso": "off", "gso": "off", "gro": "off", "loss": "0.1%", "net/core/rmem_max": "16777216"} {
		if err != nil || got[name] != want {
			t.Errorf("%s: %q, %v", name, got[name], err)
		}
	}
	if got, err := (Link{Offloads: "on"}).Wanted(); err != nil || len(got) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
}
