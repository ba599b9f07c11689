package report

import (
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/bench/internal/campaign"
	"berth.dev/berth/bench/internal/cases"
	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/plans"
)

// TestPapers: what stands for a paper's figure is there to be measured, or a reason is
// given.
func TestPapers(t *testing.T) {
	var all []Paper
	if err := yaml.Unmarshal(papersFile, &all); err != nil {
		t.Fatal(err)
	}
	systems := map[string][]string{}
	for _, name := range plans.Names() {
		where, text, err := plans.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Parse(where, text, campaign.Known())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range p.Cases {
			systems[c.Kind] = append(systems[c.Kind], c.Systems...)
		}
	}
	for _, p := range all {
		if (p.Case == "") == (p.Reason == "") {
			t.Errorf("%s, %s, %s: a case or a reason, and not both", p.Paper, p.Item, p.What)
		}
		if _, is := cases.Find(p.Case); p.Case != "" && !is {
			t.Errorf("%s, %s: there is no case %q", p.Paper, p.Item, p.Case)
		}
		if p.System != "" && !slices.Contains(systems[p.Case], p.System) {
			t.Errorf("%s, %s: no plan has %s on %q", p.Paper, p.Item, p.Case, p.System)
		}
	}
}

func TestStands(t *testing.T) {
	trial := record.Trial{
		Kind: "patch-tuesday", System: "apptainer", Phase: record.Run, Parameters: map[string]string{"rate": "200"},
		Values: []record.Value{{Name: "v1 packing"}},
	}
	for _, p := range []Paper{
		{Case: "patch-tuesday"},
		{Case: "patch-tuesday", Figure: "v1 packing", System: "apptainer", Parameters: map[string]string{"rate": "200"}},
	} {
		if !p.stands(&trial) {
			t.Errorf("%+v: it does not", p)
		}
	}
	failed, warm := trial, trial
	failed.Values, warm.Phase = nil, record.WarmUp
	for _, c := range []struct {
		of    *record.Trial
		paper Paper
	}{
		{&trial, Paper{}},
		{&trial, Paper{Case: "lazy"}},
		{&trial, Paper{Case: "patch-tuesday", Figure: "v1 fetched"}},
		{&trial, Paper{Case: "patch-tuesday", System: "berth-overlayfs"}},
		{&trial, Paper{Case: "patch-tuesday", Parameters: map[string]string{"rate": "0"}}},
		{&failed, Paper{Case: "patch-tuesday"}},
		{&warm, Paper{Case: "patch-tuesday"}},
	} {
		if c.paper.stands(c.of) {
			t.Errorf("%+v: it stands for %+v", c.of, c.paper)
		}
	}
}

// TestWhyNot: a system that was not there says so beside the paper's figure.
func TestWhyNot(t *testing.T) {
	missing := func(system string) record.Line {
		return record.Line{Unmeasured: &record.Unmeasured{System: system, Reason: system + " is missing"}}
	}
	made := record.Line{Trial: &record.Trial{
		Case: "lazy", Kind: "lazy", System: "stargz", Phase: record.Run, Values: []record.Value{{Name: "checkpoint 1"}},
	}}
	all, err := papers([]record.Line{missing("apptainer"), missing("stargz"), made})
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]int{}
	for _, p := range all {
		if p.Link == "" {
			reasons[p.Reason]++
		}
	}
	// A case has a name of its own, and is a part of a matrix.
	failed := []record.Line{
		{Session: &record.Session{Plan: "cases:\n- {name: patch-tuesday-sif, case: patch-tuesday}\n"}},
		{Unmeasured: &record.Unmeasured{System: "apptainer", Case: "patch-tuesday-sif", Reason: "it failed"}},
		{Unmeasured: &record.Unmeasured{System: "stargz", Case: "lazy tier=small", Reason: "it failed, too"}},
	}
	if all, err = papers(failed); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		reasons[p.Reason]++
	}
	if reasons["it failed"] != 2 || reasons["it failed, too"] != 1 {
		t.Errorf("got %v", reasons)
	}
	if reasons["apptainer is missing"] != 2 || reasons["stargz is missing"] != 0 {
		t.Errorf("got %v", reasons)
	}
}

// TestTuned: which of the profiles there were is said, and none is no tuning.
func TestTuned(t *testing.T) {
	under := func(is string) []record.Line {
		return []record.Line{
			{Session: &record.Session{Link: &record.Link{Name: "l", Is: is}}},
			{Trial: &record.Trial{
				Case: "pods", Kind: "bandwidth", System: "berth", Phase: record.Run, Parameters: map[string]string{"protocol": "tcp", "to": "pod"},
				Values: []record.Value{{Name: "rate"}},
			}},
		}
	}
	tuned := func(lines []record.Line) (notes []string) {
		all, err := papers(lines)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			if p.Tuned && p.Link != "" {
				notes = append(notes, p.Note)
			}
		}
		return notes
	}
	if notes := tuned(slices.Concat(under("a profile of ours; profile default; mtu 1500"), under("plain"))); notes != nil {
		t.Errorf("got %q", notes)
	}
	notes := tuned(slices.Concat(under("profile hpc-compute; mtu 1500"), under("profile accelerator-performance")))
	if len(notes) != 1 || !strings.HasSuffix(notes[0], "; under accelerator-performance, hpc-compute") {
		t.Errorf("got %q", notes)
	}
}
