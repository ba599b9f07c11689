package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

const text = `name: a
cpus: 1
memory-mb: 1
repetitions: 4
systems:
- name: bare
- {name: broken, driver: berth}
- {name: absent, driver: berth}
- {name: unable, driver: berth}
cases:
- case: startup
- case: cpu
`

// fake is a system that behaves as its name says.
type fake struct {
	name  string
	after func()
}

func (f fake) Check(context.Context) (map[string]string, error) {
	if f.name == "absent" {
		return nil, errors.New("it is missing: apt-get install it")
	}
	return map[string]string{f.name: "1"}, nil
}

func (f fake) Prepare(context.Context) error { return nil }
func (f fake) Close(context.Context) error   { return nil }

func (f fake) Run(_ context.Context, task system.Task) (system.Output, error) {
	if f.after != nil {
		f.after()
	}
	now := time.Now()
	out := system.Output{Submitted: now, First: now, Ended: now, Stdout: "events per second: 7\ntotal number of events: 7\n"}
	if task.Args[0] == "date" {
		out.Stdout = fmt.Sprintf("%d.%09d\n", now.Unix(), now.Nanosecond())
	}
	switch f.name {
	case "broken":
		return out, errors.New("it broke")
	case "unable":
		return out, &system.Unsupported{Reason: "it cannot"}
	}
	return out, nil
}

// gregarious is a system that runs trials together.
type gregarious struct {
	fake
	turns *[]int
}

func (g gregarious) RunTogether(ctx context.Context, tasks []system.Task) (results []system.Result) {
	*g.turns = append(*g.turns, len(tasks))
	for _, task := range tasks {
		out, err := g.Run(ctx, task)
		results = append(results, system.Result{Output: out, Err: err})
	}
	if len(tasks) > 1 {
		results[0].Err = errors.New("it broke")
	}
	return results
}

// TestTogether: a system that supports it runs the trials of a round at once. Each has
// its own record, and a failed one does not affect the others.
func TestTogether(t *testing.T) {
	p, err := plan.Parse("f", []byte(strings.Replace(text, "repetitions", "together: true\nwarm-ups: 0\nrepetitions", 1)), Known())
	if err != nil {
		t.Fatal(err)
	}
	var turns []int
	made := func(s plan.System, _ system.Place) (system.Driver, error) {
		if s.Name == "bare" {
			return gregarious{fake{s.Name, nil}, &turns}, nil
		}
		return fake{"absent", nil}, nil
	}
	path := filepath.Join(t.TempDir(), "records")
	if err := carryOut(t, t.Context(), path, p, made); err != nil {
		t.Fatal(err)
	}
	if n := count(t, path, func(l record.Line) bool { return l.Trial != nil && l.Trial.Together == 2 }); n == 0 || n%2 != 0 {
		t.Errorf("%d trials are noted as made together", n)
	}
	var first []bool
	count(t, path, func(l record.Line) bool {
		if l.Trial != nil && len(first) < 2 {
			first = append(first, good(l))
		}
		return false
	})
	if len(first) != 2 || !first[0] || first[1] {
		t.Errorf("what succeeded is to come before what failed: %v", first)
	}
	if n := count(t, path, func(l record.Line) bool {
		return l.Session != nil && l.Session.Versions["bare"] == "1" && l.Session.Versions["images"] != ""
	}); n != 1 {
		t.Errorf("%d sessions have the versions of the system and of the images", n)
	}
	total := 0
	for _, n := range turns {
		total += n
	}
	if turns[0] != 2 || count(t, path, func(l record.Line) bool { return l.Trial != nil }) != total {
		t.Errorf("turns of %v trials", turns)
	}
	if bad := count(t, path, func(l record.Line) bool { return l.Trial != nil && l.Trial.Error == "it broke" }); bad == 0 || bad == total {
		t.Errorf("%d of %d failed", bad, total)
	}
}

// run runs the plan once, with records in a file.
func run(t *testing.T, ctx context.Context, path string, after func()) error {
	t.Helper()
	p, err := plan.Parse("f", []byte(text), Known())
	if err != nil {
		t.Fatal(err)
	}
	return carryOut(t, ctx, path, p, func(s plan.System, _ system.Place) (system.Driver, error) { return fake{s.Name, after}, nil })
}

func carryOut(t *testing.T, ctx context.Context, path string, p *plan.Plan, made func(plan.System, system.Place) (system.Driver, error)) error {
	t.Helper()
	self := filepath.Join(t.TempDir(), "self")
	if err := os.WriteFile(self, []byte("#!/bin/sh\necho '{\"name\": \"n1\"}'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	images := t.TempDir()
	if err := os.WriteFile(filepath.Join(images, "index.json"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	before, err := record.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	records, err := record.Append(path)
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	c := Campaign{
		Plan: p, Place: system.Place{Self: self, Archive: self, Images: images, Timeout: time.Minute}, Records: records, Before: before, Progress: io.Discard,
		New: made,
	}
	return c.Run(ctx)
}

func count(t *testing.T, path string, is func(record.Line) bool) (n int) {
	t.Helper()
	lines, err := record.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if is(line) {
			n++
		}
	}
	return n
}

func good(line record.Line) bool { return line.Trial != nil && line.Trial.Error == "" }

// TestFailureStopsNoOther: a system that cannot be measured is soon skipped,
// with its reason, and the others are measured to the end.
func TestFailureStopsNoOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	if err := run(t, t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	if n := count(t, path, good); n != 2*(1+4) {
		t.Errorf("%d trials succeeded, want all of one system", n)
	}
	if n := count(t, path, func(l record.Line) bool { return l.Trial != nil && l.Trial.Error != "" }); n != 2*inARow {
		t.Errorf("%d trials failed, want %d of each case", n, inARow)
	}
	for system, want := range map[string]string{"absent": "apt-get install", "broken": "2 times in a row, last: it broke", "unable": "it cannot"} {
		if count(t, path, func(l record.Line) bool {
			return l.Unmeasured != nil && l.Unmeasured.System == system && strings.Contains(l.Unmeasured.Reason, want)
		}) == 0 {
			t.Errorf("no reason why %s is not measured", system)
		}
	}
}

// TestOnlyWhatIsLeft: a system without remaining trials is not prepared.
func TestOnlyWhatIsLeft(t *testing.T) {
	p, err := plan.Parse("f", []byte(strings.Replace(text, "- case: cpu", "- {case: cpu, systems: [bare]}", 1)), Known())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Only([]string{"cpu"}); err != nil {
		t.Fatal(err)
	}
	var asked []string
	err = carryOut(t, t.Context(), filepath.Join(t.TempDir(), "records"), p, func(s plan.System, _ system.Place) (system.Driver, error) {
		asked = append(asked, s.Name)
		return fake{s.Name, nil}, nil
	})
	if err != nil || len(asked) != 1 || asked[0] != "bare" {
		t.Errorf("asked for %v, %v", asked, err)
	}
}

// TestResume: an interrupted campaign continues where it ended, and runs no trial
// twice.
func TestResume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	left := 3
	err := run(t, ctx, path, func() {
		if left--; left == 0 {
			cancel(stop)
		}
	})
	if !errors.Is(err, stop) {
		t.Fatalf("an interrupted run ends with %v", err)
	}
	first := count(t, path, good)
	if first >= 10 {
		t.Fatalf("%d trials before the interruption", first)
	}
	if err := run(t, t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	if n := count(t, path, good); n != 10 {
		t.Errorf("%d trials in the end", n)
	}
	seen := map[record.ID]bool{}
	count(t, path, func(l record.Line) bool {
		if l.Trial != nil && seen[l.Trial.ID()] {
			t.Errorf("%v was made twice", l.Trial.ID())
		}
		if l.Trial != nil {
			seen[l.Trial.ID()] = true
		}
		return false
	})
}

// TestAnotherBuild: a file has records of one build of each program.
func TestAnotherBuild(t *testing.T) {
	p, err := plan.Parse("f", []byte(text), Known())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "records")
	with := func(digest string, after func()) func(plan.System, system.Place) (system.Driver, error) {
		return func(s plan.System, _ system.Place) (system.Driver, error) {
			return built{fake{s.Name, after}, digest}, nil
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	if err := carryOut(t, ctx, path, p, with("a", func() { cancel(stop) })); !errors.Is(err, stop) {
		t.Fatal(err)
	}
	err = carryOut(t, t.Context(), path, p, with("b", nil))
	if err == nil || !strings.Contains(err.Error(), "programs of bare a, and this is b: give another file with --out") {
		t.Errorf("another build goes on: %v", err)
	}
	sessions := func() int { return count(t, path, func(l record.Line) bool { return l.Session != nil }) }
	if n := sessions(); n != 1 {
		t.Errorf("%d sessions", n)
	}
	if err := carryOut(t, t.Context(), path, p, with("a", nil)); err != nil || sessions() != 2 {
		t.Errorf("the same build does not go on: %v", err)
	}
}

// TestTwoLinks: a file can have records of several links, whatever settings the hosts
// support of each.
func TestTwoLinks(t *testing.T) {
	p := func(link string) *plan.Plan {
		p, err := plan.Parse("f", []byte(`name: a
cpus: 1
memory-mb: 1
repetitions: 1
warm-ups: 0
links: {small: {mtu: 1500}, large: {mtu: 9000}}
systems: [{name: flannel-vxlan, driver: flannel}]
cases: [{case: bandwidth, links: [small, large], parameters: {to: pod}}]
`), Known())
		if err == nil {
			err = p.Under(link)
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	// The record of the link has more than the host can read back.
	bin := t.TempDir()
	for name, script := range map[string]string{
		"cat":     `printf 'flannel v1\nmtu %s\npod 12 10.244.1.2\npod 34 10.244.1.3\n' "$FLANNEL_MTU"`,
		"nsenter": "exit 1",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	path := filepath.Join(t.TempDir(), "records")
	for link, mtu := range map[string]string{"small": "1450", "large": "8950"} {
		t.Setenv("FLANNEL_MTU", mtu)
		if err := carryOut(t, t.Context(), path, p(link), system.New); err != nil {
			t.Errorf("under the link %s: %v", link, err)
		}
		if n := count(t, path, func(l record.Line) bool { return l.Trial != nil && strings.Contains(l.Trial.Case, "link="+link) }); n != 1 {
			t.Errorf("%d trials under the link %s", n, link)
		}
	}
}

// tidy is a system that counts its cleanups.
type tidy struct {
	fake
	closed *[]string
}

func (d tidy) Close(context.Context) error {
	*d.closed = append(*d.closed, d.name)
	return nil
}

// TestTidiedUp: prepared systems are cleaned up even if the session does not begin.
func TestTidiedUp(t *testing.T) {
	p, err := plan.Parse("f", []byte(text), Known())
	if err != nil {
		t.Fatal(err)
	}
	var closed []string
	stop := errors.New("stop")
	err = carryOut(t, t.Context(), filepath.Join(t.TempDir(), "records"), p, func(s plan.System, _ system.Place) (system.Driver, error) {
		if s.Name == "unable" {
			return nil, stop
		}
		return tidy{fake{s.Name, nil}, &closed}, nil
	})
	if !errors.Is(err, stop) || strings.Join(closed, " ") != "bare broken" {
		t.Errorf("%v, tidied up after %v", err, closed)
	}
}

// built is a system of a certain build.
type built struct {
	fake
	digest string
}

func (b built) Check(context.Context) (map[string]string, error) {
	return map[string]string{"programs of " + b.name: b.digest}, nil
}

// solitary runs one of several trials separately.
type solitary struct{ gregarious }

func (s solitary) RunTogether(ctx context.Context, tasks []system.Task) []system.Result {
	results := s.gregarious.RunTogether(ctx, tasks)
	for i, task := range tasks {
		if task.Args[0] == "date" {
			results[i].Start, results[i].Took = time.Unix(7, 0), time.Nanosecond
		}
	}
	return results
}

// TestAloneInATurn: a trial with a separate cluster has a separate time, and no
// part in the time of the others.
func TestAloneInATurn(t *testing.T) {
	p, err := plan.Parse("f", []byte(strings.Replace(text, "repetitions", "together: true\nwarm-ups: 0\nrepetitions", 1)+"- {name: more, case: cpu}\n"), Known())
	if err != nil {
		t.Fatal(err)
	}
	var turns []int
	path := filepath.Join(t.TempDir(), "records")
	err = carryOut(t, t.Context(), path, p, func(s plan.System, _ system.Place) (system.Driver, error) {
		if s.Name == "bare" {
			return solitary{gregarious{fake{s.Name, nil}, &turns}}, nil
		}
		return fake{"absent", nil}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for caseName, want := range map[string]int{"startup": 0, "cpu": 2} {
		n := count(t, path, func(l record.Line) bool {
			return l.Trial != nil && l.Trial.Kind == caseName && l.Trial.Together == want && (l.Trial.Seconds == 1e-9 && l.Trial.Start.Unix() == 7) == (caseName == "startup")
		})
		if all := count(t, path, func(l record.Line) bool { return l.Trial != nil && l.Trial.Kind == caseName }); n != all || n == 0 {
			t.Errorf("%s: %d of %d trials have their own time, made together %d", caseName, n, all, want)
		}
	}
}

func TestEstimate(t *testing.T) {
	p, err := plan.Parse("f", []byte(text), Known())
	if err != nil {
		t.Fatal(err)
	}
	trials, long := Estimate(p, nil)
	// Each case has one warm-up and four runs, on four systems.
	if want := 2 * 5 * 4; trials != want || long < time.Minute {
		t.Errorf("%d trials in %s, want %d", trials, long, want)
	}
	slow := record.Line{Trial: &record.Trial{Case: "cpu", System: "bare", Phase: record.WarmUp, Number: 1, Seconds: 1000}}
	if trials, after := Estimate(p, []record.Line{slow}); trials != 39 || after < 4000*time.Second {
		t.Errorf("after a slow one: %d trials in %s", trials, after)
	}
	// Packing images takes minutes, and only image cases need it.
	for caseName, longer := range map[string]bool{"cpu": false, "cold-node": true} {
		p, err := plan.Parse("f", []byte("name: f\nseed: 1\ncpus: 1\nmemory-mb: 500\nrepetitions: 1\nwarm-ups: 0\nsystems: [{name: apptainer}]\ncases: [{case: "+caseName+"}]\n"), Known())
		if err != nil {
			t.Fatal(err)
		}
		if _, long := Estimate(p, nil); (long > 2*time.Minute) != longer {
			t.Errorf("%s by Apptainer in %s", caseName, long)
		}
	}
}
