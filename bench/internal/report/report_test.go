package report

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/bench/internal/cases"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

var update = flag.Bool("update", false, "write the golden files anew") //nolint:gochecknoglobals // a flag

func read(t *testing.T, name string) []record.Line {
	t.Helper()
	lines, err := record.ReadFile(filepath.Join("testdata", name))
	if err != nil || len(lines) == 0 {
		t.Fatalf("read %s: %d lines, %v", name, len(lines), err)
	}
	return lines
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	same(t, filepath.Join("testdata", "golden", name), got)
}

// samePage compares with a packed file, because pictures make pages large. The
// difference begins with the first line that the file has otherwise.
func samePage(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name+".gz")
	if *update {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := z.Write(got); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, packed.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(got, want) {
		return
	}
	now, before := bytes.Split(got, []byte("\n")), bytes.Split(want, []byte("\n"))
	line := 0
	for line < min(len(now), len(before))-1 && bytes.Equal(now[line], before[line]) {
		line++
	}
	t.Errorf("%s is another one now; 'go test ./internal/report -update' writes it. Line %d was\n%s\nand is\n%s", path, line+1, before[line], now[line])
}

// same compares with a file.
func same(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is another one now; 'go test ./internal/report -update' writes it, 'git diff' shows the difference", path)
	}
}

// TestGolden makes the reports of runs that were recorded on the bed.
func TestGolden(t *testing.T) {
	records, err := filepath.Glob("testdata/*.jsonl.zst")
	if err != nil || len(records) == 0 {
		t.Fatal("no records", err)
	}
	for _, path := range records {
		name := filepath.Base(path)
		files, err := Make(read(t, name))
		if err != nil {
			t.Fatal(err)
		}
		for form, content := range files {
			compare := golden
			if form == "report.html" {
				compare = samePage
			}
			compare(t, strings.TrimSuffix(name, ".jsonl.zst")+"-"+form, content)
		}
	}
}

// TestMPI: the report has the MPI of each system's programs, and the digest of the image.
func TestMPI(t *testing.T) {
	lines := read(t, "pcocc.jsonl.zst")
	trials := 0
	for _, line := range lines {
		if trial := line.Trial; trial != nil && trial.System == "ctr" {
			trial.Step.MPI = []string{"mpirun (Open MPI) 4.1.4", "mpirun (Open MPI) 5.0.7"}[min(trials, 1)]
			trials++
		}
	}
	files, err := Make(lines)
	if err != nil || trials < 3 {
		t.Fatalf("%d trials, %v", trials, err)
	}
	for _, form := range []string{"report.md", "report.html"} {
		if !strings.Contains(string(files[form]), "MPI of ctr mpirun (Open MPI) 4.1.4 and mpirun (Open MPI) 5.0.7") {
			t.Errorf("%s does not say it", form)
		}
	}
}

// TestPublished checks that the Markdown reports of docs/bench match their records. 'make
// reports' writes the pages with charts, which are not in git.
func TestPublished(t *testing.T) {
	const docs = "../../../docs/bench"
	records, err := filepath.Glob(docs + "/*/records.jsonl.zst")
	if err != nil || len(records) < 2 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	for _, path := range records {
		lines, err := record.ReadFile(path)
		if err != nil || len(lines) == 0 {
			t.Fatalf("read %s: %d lines, %v", path, len(lines), err)
		}
		files, err := Make(lines)
		if err != nil {
			t.Fatal(err)
		}
		same(t, filepath.Join(filepath.Dir(path), "report.md"), files["report.md"])
	}
}

// TestPageWorksOffline: a report can be read without a network.
func TestPageWorksOffline(t *testing.T) {
	files, err := Make(read(t, "quick.jsonl.zst"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(files["report.html"])
	for _, word := range []string{"<script", "src=", "<link", "@import", "url(http"} {
		if strings.Contains(page, word) {
			t.Errorf("the page has %q", word)
		}
	}
}

// TestReadOutputAgain: reading a record's output again gives the record's figures. A
// case may read more figures by now.
func TestReadOutputAgain(t *testing.T) {
	kinds := map[string]bool{}
	for _, line := range slices.Concat(read(t, "quick.jsonl.zst"), read(t, "bed.jsonl.zst"), read(t, "connections.jsonl.zst"), read(t, "images.jsonl.zst"), read(t, "pcocc.jsonl.zst"), read(t, "again/images.jsonl"), read(t, "again/beside.jsonl")) {
		trial := line.Trial
		if trial == nil || trial.Kind == "startup" || trial.Kind == "scale" || trial.Error != "" { // its figures are of times, too
			continue
		}
		c, ok := cases.Find(trial.Kind)
		if !ok {
			t.Fatalf("no case %s", trial.Kind)
		}
		values, err := c.Read(trial.Parameters, system.Output{Stdout: trial.Output, Step: trial.Step})
		recorded := map[string]bool{}
		for _, v := range trial.Values {
			recorded[v.Name] = true
		}
		values = slices.DeleteFunc(values, func(v record.Value) bool { return !recorded[v.Name] })
		// The values after them come from the system.
		own := trial.Values[:min(len(values), len(trial.Values))]
		if err != nil || len(values) == 0 || !slices.Equal(values, own) {
			t.Errorf("%v: got %v, %v; want %v", trial.ID(), values, err, trial.Values)
		}
		kinds[trial.Kind] = true
	}
	if len(kinds) < len(cases.All())-2 {
		t.Errorf("only %v were checked", kinds)
	}
}

func TestComparedWithItself(t *testing.T) {
	lines := read(t, "quick.jsonl.zst")
	var out strings.Builder
	if err := Compare(&out, lines, lines); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "case") {
			continue
		}
		if !strings.Contains(line, "1.000") || !strings.Contains(line, "no difference seen") {
			t.Errorf("got %q", line)
		}
	}
	// A comparison reports figures that only one of the two has.
	half := slices.DeleteFunc(slices.Clone(lines), func(l record.Line) bool { return l.Trial != nil && l.Trial.Case == "cpu" && l.Trial.System == "bare" })
	out.Reset()
	if err := Compare(&out, half, lines); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "not compared: cpu: events per second on bare is only in the second") {
		t.Errorf("got %s", out.String())
	}
	// A case that only one has is reported once.
	half = slices.DeleteFunc(slices.Clone(lines), func(l record.Line) bool { return l.Trial != nil && l.Trial.Case == "cpu" })
	for which, pair := range map[string][2][]record.Line{"second": {half, lines}, "first": {lines, half}} {
		out.Reset()
		if err := Compare(&out, pair[0], pair[1]); err != nil || strings.Count(out.String(), "not compared: cpu") != 1 || !strings.Contains(out.String(), "not compared: cpu is only in the "+which+"\n") {
			t.Errorf("%v: got %s", err, out.String())
		}
	}
}

func TestRatio(t *testing.T) {
	a := []float64{10, 11, 12, 13, 14, 15}
	double := []float64{20, 22, 24, 26, 28, 30}
	r, ok := ratio(a, double)
	if !ok || math.Abs(r.Value-2) > 0.02 || !r.Differs() || r.Low >= 2 || r.High <= 2 || r.P > 0.01 {
		t.Errorf("twice as much: %+v", r)
	}
	if r, ok = ratio(a, a); !ok || r.Value != 1 || r.Differs() || r.P < 0.9 {
		t.Errorf("the same: %+v", r)
	}
	if r, ok = ratio(a[:3], double[:3]); !ok || r.HasInterval() {
		t.Errorf("three values tell nothing at 95 %%: %+v", r)
	}
	if _, ok = ratio([]float64{0}, a); ok {
		t.Error("a ratio to nothing")
	}
	// Tables of U: for samples of 10 and 10 the critical value at 0.05 is 23.
	if got := below(10, 10); got != 24 {
		t.Errorf("got %d quotients outside, want 24", got)
	}
	if got := below(60, 60); got < 1400 || got > 1500 {
		t.Errorf("of large samples: %d", got)
	}
}

// TestFastPath: a row shows the share of its connections that the hosts made, and
// is marked as overlay if the share is too small. It stands beside the case that
// it names, with its own link.
func TestFastPath(t *testing.T) {
	machine := func(name string) record.Machine {
		return record.Machine{Name: name, Boot: "b", Settings: map[string]string{"link eth0 tso": "off", "vm/swappiness": "60"}}
	}
	lines := []record.Line{{Session: &record.Session{
		Name: "x", Title: "x", Reference: "bare", Link: &record.Link{Name: "slow", Is: "1 Gbit/s"}, Nodes: []record.Machine{machine("n1"), machine("n2")},
	}}}
	for n := range 6 {
		add := func(system, caseName, against string, gbits, share float64) {
			values := []record.Value{{Name: "received", Unit: "Gbit/s", Better: "higher", Value: gbits + float64(n)/100}}
			if share >= 0 {
				values = append(values, record.Value{Name: record.Share, Unit: "%", Better: "higher", Value: share})
			}
			lines = append(lines, record.Line{Trial: &record.Trial{
				Case: caseName, Kind: "bandwidth", System: system, Against: against, Phase: record.Run, Number: n + 1, Values: values,
			}})
		}
		add("bare", "hosts", "", 10, -1)
		add("fast", "pods", "hosts", 10, 99.97)
		add("fast", "services", "hosts", 5, 98.9)
	}
	files, err := Make(lines)
	if err != nil {
		t.Fatal(err)
	}
	for form, wants := range map[string][]string{
		"report.md": {
			"Times bare in hosts.", "| fast (99.9 % by the hosts) | 6 | 10.02 |", "| 1.000 (0.997 to 1.003) | no difference seen |",
			"| fast (overlay, not fast path: hosts made 98.9 % of the connections) | 6 | 5.025 |", "| 0.501 (",
			"| slow | 1 Gbit/s | n2 | eth0 tso: off |", "Hosts are one machine",
		},
		"report.html": {"overlay, not fast path", "1 Gbit/s", "eth0 tso: off", "that of the other end is in it"},
	} {
		for _, want := range wants {
			if !strings.Contains(string(files[form]), want) {
				t.Errorf("%s lacks %q:\n%s", form, want, files[form])
			}
		}
	}
}

// TestOverlayIsReported: one trial without the fast path marks a system that should have it,
// in tables, charts and comparisons.
func TestOverlayIsReported(t *testing.T) {
	records := func(shares ...float64) []record.Line {
		lines := []record.Line{{Session: &record.Session{Name: "x", Title: "x", Reference: "bare", Plan: "systems: [{name: fast, driver: berth, options: {network: auto}}]"}}}
		for n, share := range shares {
			values := []record.Value{{Name: "received", Unit: "Gbit/s", Better: "higher", Value: 10}}
			if share >= 0 {
				values = append(values, record.Value{Name: record.Share, Unit: "%", Better: "higher", Value: share})
			}
			for _, kind := range []string{"bandwidth", "cpu"} {
				lines = append(lines, record.Line{Trial: &record.Trial{Case: kind, Kind: kind, System: "fast", Phase: record.Run, Number: n + 1, Values: values}})
				values = values[:1]
			}
		}
		return lines
	}
	all := records(100, 100, 100)
	for name, test := range map[string]struct {
		lines []record.Line
		want  string
	}{
		"all":       {all, "| fast (100 % by the hosts) | 3 |"},
		"nearly":    {records(100, 99.5, 100), "| fast (100 %, least 99.5 % by the hosts) | 3 |"},
		"one of 3":  {records(100, 0, 100), "| fast (overlay, not fast path: hosts made 100 %, least 0 %, of the connections) | 3 |"},
		"no counts": {records(100, -1, 100), "| fast (overlay, not fast path: hosts made 100 %, least 0 %, of the connections) | 3 |"},
		"never":     {records(-1, -1), "| fast (overlay, not fast path: its connections were not counted) | 2 |"},
	} {
		files, err := Make(test.lines)
		if err != nil {
			t.Fatal(err)
		}
		if text := string(files["report.md"]); !strings.Contains(text, test.want) || !strings.Contains(text, "| fast | ") {
			t.Errorf("%s: want %q:\n%s", name, test.want, text)
		}
		overlay := strings.Contains(test.want, "overlay")
		if got := strings.Contains(string(files["report.html"]), ">fast (overlay)<"); got != overlay {
			t.Errorf("%s: the chart says overlay: %v", name, got)
		}
		var first, second strings.Builder
		if err := errors.Join(Compare(&first, test.lines, all), Compare(&second, all, test.lines)); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(first.String(), "fast (first: overlay)") != overlay || strings.Contains(second.String(), "fast (second: overlay)") != overlay {
			t.Errorf("%s: compared:\n%s%s", name, first.String(), second.String())
		}
	}
	var kinds []string
	for _, c := range cases.All() {
		parameters := map[string]string{}
		for _, p := range c.Parameters {
			parameters[p.Name] = p.Default
		}
		if task, err := c.Task(parameters, 1, 1000); err == nil && task.Connects {
			kinds = append(kinds, c.Name)
		}
	}
	if slices.Sort(kinds); !slices.Equal(kinds, connecting) {
		t.Errorf("connections of %v are counted, and missed of %v", kinds, connecting)
	}
}

// TestMissing: failed and skipped cases are in the report.
func TestMissing(t *testing.T) {
	session := record.Line{Session: &record.Session{Name: "x", Title: "x", Reference: "bare"}}
	failed := func(n int) record.Line {
		return record.Line{Trial: &record.Trial{Case: "cpu", Kind: "cpu", System: "berth", Phase: record.Run, Number: n, Error: "broken <pipe>"}}
	}
	lines := []record.Line{session, {Unmeasured: &record.Unmeasured{System: "podman", Reason: "podman is missing: apt-get install podman"}}, failed(1), failed(2)}
	files, err := Make(lines)
	if err != nil {
		t.Fatal(err)
	}
	for form, wants := range map[string][]string{
		"report.html": {"apt-get install podman", "2 of 2 trials failed, the last: broken &lt;pipe&gt;", "all cases"},
		"report.md":   {"| podman | all cases | podman is missing", "| berth | cpu | 2 of 2 trials failed"},
		"figures.csv": {"broken <pipe>"},
	} {
		for _, want := range wants {
			if !strings.Contains(string(files[form]), want) {
				t.Errorf("%s lacks %q", form, want)
			}
		}
	}
	for _, none := range [][]record.Line{nil, {failed(1)}} {
		if _, err := Make(none); err == nil {
			t.Errorf("a report of %d lines without a session", len(none))
		}
	}
}

// TestMissingUnderLink: a system that another link's session had is still missing.
func TestMissingUnderLink(t *testing.T) {
	session := func(link string) record.Line {
		return record.Line{Session: &record.Session{Name: "x", Title: "x", Reference: "bare", Link: &record.Link{Name: link}}}
	}
	missing := record.Line{Unmeasured: &record.Unmeasured{System: "pasta", Reason: "pasta is missing"}}
	trial := record.Line{Trial: &record.Trial{Case: "cpu link=fast", Kind: "cpu", System: "pasta", Phase: record.Run, Number: 1}}
	for name, test := range map[string]struct {
		lines []record.Line
		want  bool
	}{
		"under another link": {[]record.Line{session("fast"), trial, session("slow"), missing}, true},
		"later there":        {[]record.Line{session("fast"), missing, session("fast"), trial}, false},
	} {
		files, err := Make(test.lines)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(files["report.md"]), "| pasta | all cases with the link slow | pasta is missing |"); got != test.want {
			t.Errorf("%s:\n%s", name, files["report.md"])
		}
	}
}

// TestInEffect: the report has the settings of a link and its profile as they are in
// effect, and marks values that differ from the plan.
func TestInEffect(t *testing.T) {
	lines := []record.Line{{Session: &record.Session{
		Name: "x", Title: "x", Reference: "bare", Nodes: []record.Machine{{Name: "n1", Settings: map[string]string{
			"link eth0 mtu": "1500", "link eth0 tso": "on", "net/core/rmem_max": "16777216", "vm/swappiness": "60", "net/ipv4/tcp_rmem": "4096\t131072\t16777216",
			"kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
		}}},
		Link: &record.Link{Name: "tuned", Is: "profile x", Wanted: map[string]string{
			"mtu": "9000", "loss": "0.1%", "net/core/rmem_max": "16777216", "net/core/busy_read": "50", "net/ipv4/tcp_rmem": "4096 131072 16777216",
			"kernel/mm/transparent_hugepage/enabled": "never", "tso": "on",
		}},
	}}}
	files, err := Make(lines)
	if err != nil {
		t.Fatal(err)
	}
	const want = "| tuned | profile x | n1 | eth0 mtu: 1500 (wanted: 9000), eth0 tso: on, " +
		"kernel/mm/transparent_hugepage/enabled: madvise (wanted: never), loss: not seen (wanted: 0.1%), " +
		"net/core/busy_read: not seen (wanted: 50), net/core/rmem_max: 16777216, net/ipv4/tcp_rmem: 4096 131072 16777216 |"
	if !strings.Contains(string(files["report.md"]), want) {
		t.Errorf("want %q:\n%s", want, files["report.md"])
	}
}

// TestReferenceUnderTwoLinks: the reference under another link is compared with itself.
func TestReferenceUnderTwoLinks(t *testing.T) {
	lines := []record.Line{{Session: &record.Session{Name: "x", Title: "x", Reference: "bare"}}}
	for n := range 6 {
		for _, c := range []struct {
			caseName, against string
			value             float64
		}{{"steps link=hosts", "", 1}, {"steps-site link=pods", "steps link=hosts", 2}} {
			lines = append(lines, record.Line{Trial: &record.Trial{
				Case: c.caseName, Kind: "mpi-init", System: "bare", Against: c.against, Phase: record.Run, Number: n + 1,
				Values: []record.Value{{Name: "step", Unit: "s", Better: "lower", Value: c.value + float64(n)/1000}},
			}})
		}
	}
	files, err := Make(lines)
	if err != nil {
		t.Fatal(err)
	}
	text := string(files["report.md"])
	if !strings.Contains(text, "Times bare in steps link=hosts.") || !strings.Contains(text, "| 1.998 (") || strings.Count(text, "| worse |") != 1 {
		t.Errorf("got %s", text)
	}
}

// TestCutOffLinesAreReported: the report mentions lines that a crash left unfinished.
func TestCutOffLinesAreReported(t *testing.T) {
	lines := records(0, asIs)
	for cut, want := range []string{"", "1 line of the records was cut off by a crash", "2 lines of the records were cut off by a crash"} {
		files, err := Make(lines)
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range []string{"report.md", "report.html"} {
			if text := string(files[form]); !strings.Contains(text, want) || strings.Contains(text, "cut off by") != (cut > 0) {
				t.Errorf("%d, %s: %s", cut, form, text)
			}
		}
		lines = append(lines, record.Line{CutOff: 9})
	}
}
