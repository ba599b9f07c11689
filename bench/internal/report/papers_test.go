package report

import (
	"fmt"
	"maps"
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

// TestPapers: every substitute for a figure of a paper can be measured, or has a
// reason why not.
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
			systems[name+" "+c.Kind] = append(systems[name+" "+c.Kind], c.Systems...)
		}
	}
	items := map[string]bool{}
	for _, p := range all {
		if (p.Case == "") == (p.Reason == "") {
			t.Errorf("%s, %s, %s: a case or a reason, and not both", p.Paper, p.Item, p.What)
		}
		if _, is := cases.Find(p.Case); p.Case != "" && !is {
			t.Errorf("%s, %s: there is no case %q", p.Paper, p.Item, p.Case)
		}
		items[p.Paper+" "+p.Item] = true
		if p.Case == "" {
			continue
		}
		for _, system := range append(slices.Clone(p.Systems), p.System) {
			if has := systems[p.Plan+" "+p.Case]; system != "" && !slices.Contains(has, system) || has == nil {
				t.Errorf("%s, %s: the plan %s has no %s on %q", p.Paper, p.Item, p.Plan, p.Case, system)
			}
		}
	}
	for paper, figures := range map[string]int{"KSI 2": 10, "CNI study": 33, "Image delivery": 3, "pcocc": 3} {
		for n := range figures {
			item := fmt.Sprintf("%s Figure %d", paper, n+1)
			if !slices.ContainsFunc(slices.Collect(maps.Keys(items)), func(have string) bool { return have == item || strings.HasPrefix(have, item+",") }) {
				t.Errorf("there is no row for %s", item)
			}
		}
	}
	for _, table := range []string{"Table I", "Table II", "Table III", "Table IV", "Table V", "Table VI, RQ4"} {
		if !items["KSI 2 "+table] {
			t.Errorf("there is no row for %s", table)
		}
	}
}

// TestTrialSelection: a trial counts for a paper's figure if its case, parameters,
// system and figure match.
func TestTrialSelection(t *testing.T) {
	trial := record.Trial{
		Kind: "patch-tuesday", System: "apptainer", Phase: record.Run, Parameters: map[string]string{"rate": "200"},
		Values: []record.Value{{Name: "v1 packing"}},
	}
	for _, p := range []Paper{
		{Case: "patch-tuesday"},
		{Case: "patch-tuesday", Figure: "v1 packing", System: "apptainer", Parameters: map[string]string{"rate": "200"}},
	} {
		if !p.counts(&trial) {
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
		if c.paper.counts(c.of) {
			t.Errorf("%+v: it counts %+v", c.of, c.paper)
		}
	}
}

// TestReasonsOfMissingSystems: the row of a paper's figure gives the reason why a system was
// missing.
func TestReasonsOfMissingSystems(t *testing.T) {
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
		if p.At == "" {
			reasons[p.Reason]++
		}
	}
	// A case may have another name than its kind, or be part of a matrix.
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

// TestProfileAndLink: a figure of a profile or a link counts only when it was measured under
// that profile or link. The row names the systems, links and values that were
// measured.
func TestProfileAndLink(t *testing.T) {
	under := func(name, is, system, length string) []record.Line {
		return []record.Line{
			{Session: &record.Session{Name: "cni-bed", Link: &record.Link{Name: name, Is: is}}},
			{Trial: &record.Trial{
				Case: "pods", Kind: "bandwidth", System: system, Phase: record.Run, Parameters: map[string]string{"protocol": "tcp", "to": "pod", "length": length},
				Values: []record.Value{{Name: "rate"}},
			}},
		}
	}
	rows := func(lines []record.Line) map[string]string {
		all, err := papers(lines)
		if err != nil {
			t.Fatal(err)
		}
		said := map[string]string{}
		for _, p := range all {
			if p.Paper == "CNI study" {
				said[p.What] = map[bool]string{true: p.Coverage.String() + ": ", false: "not: "}[p.At != ""] + map[bool]string{true: p.Says(), false: p.Reason}[p.At != ""]
			}
		}
		return said
	}
	said := rows(slices.Concat(under("a", "a profile of ours; profile default; mtu 1500", "berth", "1472"), under("b", "profile default", "berth", "64"),
		under("1g", "profiles", "flannel-vxlan", "64")))
	for what, want := range map[string]string{
		"TCP bandwidth, profile default": "only berth: with iperf3: the paper does not name its program; on berth under a; length=1472 (in the paper: 64, 512, 1472, 9000, 15000); " +
			"on berth under b; length=64 (in the paper: 64, 512, 1472, 9000, 15000); 1 run (in the paper: 5 with TCP, 2 with UDP); without Antrea, Calico, Cilium, flannel",
		"TCP bandwidth, profile network-latency": "not: the plan cni has it, and cni-bed not",
		"TCP latency, profile default":           "not: the plan cni has it, and cni-bed not",
		"1-gigabit": "measured in part: a rate that the kernel limits; with iperf3: the paper does not name its program; " +
			"at MTU 1500 only, and the paper also has 9000; on flannel-vxlan under 1g; length=64 (in the paper: 64, 512, 1472, 9000, 15000); 1 run (in the paper: 5 with TCP, 2 with UDP); without Antrea, Calico, Cilium",
		"10-gigabit": "not: the plan cni has it, and cni-bed not",
	} {
		if said[what] != want {
			t.Errorf("%s: %q, want %q", what, said[what], want)
		}
	}
}

// TestSystemsOfAFigure: one of several systems is not all of them.
func TestSystemsOfAFigure(t *testing.T) {
	all, err := papers([]record.Line{
		{Session: &record.Session{Name: "mine", Plan: "cases: [{name: one, case: storage}]"}},
		{Unmeasured: &record.Unmeasured{System: "podman-slirp4netns", Reason: "podman is missing"}},
		{Trial: &record.Trial{Case: "startup", Kind: "startup", System: "berth", Phase: record.Run, Values: []record.Value{{Name: "x"}}}},
		{Trial: &record.Trial{Case: "cpu", Kind: "cpu", System: "bare", Phase: record.Run, Values: []record.Value{{Name: "x"}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Item == "Table V" && (!strings.HasSuffix(p.Says(), "; on berth; 1 run (in the paper: 10); without Bridge Operator, HPK, KSI (podman is missing), bare metal") || p.Item == "Table V" && p.Coverage != onlyBerth) {
			t.Errorf("got %q", p.Says())
		}
		if p.Item == "Figure 3" && p.Paper == "KSI 2" && (p.At != "" || p.Reason != "bare metal alone was; without Bridge Operator, HPK, KSI (podman is missing)") {
			t.Errorf("got %q", p.Reason)
		}
		if p.Item == "Figure 4" && p.Paper == "KSI 2" && p.Reason != "the plan ksi has it, and mine not" {
			t.Errorf("got %q", p.Reason)
		}
		if p.Item == "Figure 5" && p.Paper == "KSI 2" && !strings.HasPrefix(p.Reason, "of this case no trial has succeeded") {
			t.Errorf("got %q", p.Reason)
		}
	}
	// A plan that has the case, and not that system, is no attempt.
	all, err = papers([]record.Line{{Session: &record.Session{Name: "mine", Plan: "systems: [{name: native}]\ncases: [{case: mpi-init}]"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		want := map[string]string{"native": "of this case no trial has succeeded that has the paper's parameters: see Not measured", "ctr": "the plan pcocc has it, and mine not"}[p.System]
		if p.Case == "mpi-init" && want != "" && p.Reason != want {
			t.Errorf("on %s: %q", p.System, p.Reason)
		}
	}
	// The three systems of pcocc, and others.
	mpi := func(system string) []record.Line {
		return []record.Line{
			{Session: &record.Session{Name: "pcocc"}},
			{Trial: &record.Trial{Case: "m", Kind: "mpi-init", System: system, Phase: record.Run, Parameters: map[string]string{"nodes": "2", "hosts-launcher": "srun"}, Values: []record.Value{{Name: "x"}}}},
		}
	}
	for system, want := range map[string]string{
		"native": "native",
		"bare":   "native",
		"ctr":    "in a container with the hosts' network (ctr)",
		"ctrnet": "in a container with its own network (ctrnet)",
		"net":    "on the site network, without a container",
		"berth":  "in pods of berth",
	} {
		all, err := papers(mpi(system))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range all {
			if p.At != "" {
				got = append(got, strings.TrimPrefix(p.What, "steps that do MPI_Init: "))
			}
		}
		if !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q", system, got)
		}
	}
}

// TestCoverage: the paper's systems, programs and amounts make a row "measured".
func TestCoverage(t *testing.T) {
	of := map[string][]string{"bare metal": {"bare"}, "A": {"a-1", "a-2"}, "B": {"b"}}
	everything := []string{"bare", "a-2", "b", "berth"}
	for _, c := range []struct {
		paper   Paper
		systems []string
		differ  bool
		want    coverage
	}{
		{Paper{Of: of}, everything, false, asInPaper},
		{Paper{Of: of}, everything, true, otherwise},
		{Paper{Of: of, Note: "C instead of B"}, everything, false, otherwise},
		{Paper{Of: of}, []string{"a-1", "berth"}, false, inPart},
		{Paper{Of: of}, []string{"bare", "berth"}, false, onlyBerth},
		{Paper{}, []string{"berth"}, false, onlyBerth},
		{Paper{Of: of, Profile: noProfile}, everything, false, asInPaper},
		{Paper{Of: of, Profile: "tuned"}, everything, false, notApplied},
	} {
		if got := c.paper.judge(c.systems, c.differ, profileState{changed: []string{"vm/swappiness"}}); got != c.want {
			t.Errorf("%+v on %v: %v, want %v", c.paper, c.systems, got, c.want)
		}
	}
}

// TestProfileState distinguishes settings of a profile that were changed, that had
// the value before, and that do not exist. One setting decides about a protocol.
func TestProfileState(t *testing.T) {
	session := func(name, profile string, settings, wanted map[string]string) record.Line {
		return record.Line{Session: &record.Session{
			Nodes: []record.Machine{{Settings: settings}}, Link: &record.Link{Name: name, Is: "profile " + profile, Wanted: wanted},
		}}
	}
	wanted := map[string]string{
		"mtu": "1500", "net/ipv4/tcp_rmem": "1 2 3", "gro": "on", "vm/swappiness": "10", "net/core/busy_poll": "50", "rx ring": "4096", "net/ipv4/tcp_sack": "0",
	}
	all := readTunings([]record.Line{
		session("tuned", "fast", map[string]string{"net/ipv4/tcp_rmem": "1\t2\t3", "link eth0 gro": "on", "vm/swappiness": "10", "net/ipv4/tcp_sack": "1"}, wanted),
		session("plain", noProfile, map[string]string{"net/ipv4/tcp_rmem": "1\t2\t4", "link eth0 gro": "on", "link cni0 gro": "off", "vm/swappiness": "60"}, nil),
	})
	const want = "in effect: net/ipv4/tcp_rmem*, vm/swappiness; so before: gro*; another value: net/ipv4/tcp_sack*; absent: rx ring*; not visible: net/core/busy_poll*"
	if got := all["tuned"].words("tcp"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !all["tuned"].applied("tcp") || all["tuned"].applied("udp") || len(all) != 1 {
		t.Errorf("it is applied to TCP alone: %+v", all)
	}
}
