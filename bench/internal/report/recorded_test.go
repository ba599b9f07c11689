package report

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/bench/internal/record"
)

// TestRecordedPapers: docs/bench/papers.md covers all recorded runs.
func TestRecordedPapers(t *testing.T) {
	const docs = "../../../docs/bench"
	paths, err := filepath.Glob(docs + "/*/records.jsonl.zst")
	if err != nil || len(paths) < 2 {
		t.Fatalf("%d records, %v", len(paths), err)
	}
	var runs []Run
	for _, path := range paths {
		lines, err := record.ReadFile(path)
		if err != nil || len(lines) == 0 {
			t.Fatalf("read %s: %d lines, %v", path, len(lines), err)
		}
		runs = append(runs, Run{filepath.Base(filepath.Dir(path)), lines})
	}
	page, err := Recorded(runs)
	if err != nil {
		t.Fatal(err)
	}
	same(t, filepath.Join(docs, "papers.md"), page)
	// The first line has the number of rows of each kind.
	counts := map[string]int{}
	for _, row := range regexp.MustCompile(`(?m)^\|[^|]+\|[^|]+\|[^|]+\| ([a-z ]+)(:.*)? \|$`).FindAllStringSubmatch(string(page), -1) {
		counts[row[1]]++
	}
	first := fmt.Sprintf("Of %d rows %d are measured as in the paper, %d measured otherwise, %d measured in part,\n%d of only berth, %d of a profile that was not applied, %d not measured, and %d are no measurements.",
		len(each(t)), counts["measured"], counts["measured otherwise"], counts["measured in part"], counts["only berth"], counts["not applied"], counts["not measured"], counts["not a measurement"])
	if !strings.Contains(string(page), first) {
		t.Errorf("the table has: %s", first)
	}
}

// each returns the rows of the list of the papers' figures.
func each(t *testing.T) (all []Paper) {
	if err := yaml.Unmarshal(papersFile, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestEveryRecordIsListed: a record stays in the repository, and docs/bench/README.md links to
// it. It links to no record that is gone.
func TestEveryRecordIsListed(t *testing.T) {
	const docs, results = "../../../docs/bench", "../../results"
	page, err := os.ReadFile(docs + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, link := range regexp.MustCompile(`\]\(\.\./\.\./bench/results/([^)]+)\)`).FindAllStringSubmatch(string(page), -1) {
		listed[link[1]] = true
	}
	err = fs.WalkDir(os.DirFS(results), ".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !listed[path] {
			t.Errorf("docs/bench/README.md does not list the record %s", path)
		}
		delete(listed, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for gone := range listed {
		t.Errorf("the record %s is gone; one that is superseded moves to bench/results/superseded", gone)
	}
}

// TestEveryRecordStays: a record is never edited or deleted. bench/results.sha256 has its
// sum, for sha256sum, and the list has every record that the history of this checkout has.
// The format of some has changed.
func TestEveryRecordStays(t *testing.T) {
	const results = "../../results"
	sums, err := os.ReadFile(results + ".sha256")
	if err != nil {
		t.Fatal(err)
	}
	listed, stems := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(sums)) {
		want, path, _ := strings.Cut(strings.TrimSpace(line), "  ")
		listed[path], stems[stem(path)] = true, true
		content, err := os.ReadFile(filepath.Join(results, path))
		if err != nil {
			t.Error(err)
		} else if got := fmt.Sprintf("%x", sha256.Sum256(content)); got != want {
			t.Errorf("the record %s has been edited: its sum is %s, want %s", path, got, want)
		}
	}
	err = fs.WalkDir(os.DirFS(results), ".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !listed[path] {
			t.Errorf("bench/results.sha256 does not list the record %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// An unpacked archive has no history, and a shallow checkout has less.
	history, err := exec.Command("git", "-C", results, "log", "--no-renames", "--diff-filter=A", "--name-only", "--format=", "--", ".").Output()
	if err != nil {
		t.Log("no history:", err)
	}
	for path := range strings.Lines(string(history)) {
		if path = strings.TrimSpace(path); path != "" && !stems[stem(path)] {
			t.Errorf("the record %s is gone from bench/results.sha256", path)
		}
	}
}

// stem returns the name of a record without folder and format.
func stem(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	return name
}

// TestRecorded: a row names the runs that have it, and their amounts. A run of
// only bare metal does not measure a system. A row that no run has gives the
// reason.
func TestRecorded(t *testing.T) {
	trial := func(kind, system, seconds string) record.Line {
		return record.Line{Trial: &record.Trial{
			Case: kind, Kind: kind, System: system, Phase: record.Run, Values: []record.Value{{Name: "x"}},
			Parameters: map[string]string{"seconds": seconds, "to": "host", "bytes": "200"},
		}}
	}
	one := Run{"one", []record.Line{
		{Session: &record.Session{Name: "one"}}, trial("latency", "bare", "1"), trial("latency", "berth", "1"), trial("latency", "berth", "1"),
		trial("latency", "podman-slirp4netns", "1"), {Unmeasured: &record.Unmeasured{System: "podman-pasta", Reason: "too | old"}},
	}}
	two := Run{"two", []record.Line{{Session: &record.Session{Name: "two", Plan: "cases: [{name: l, case: memory}]"}}, trial("latency", "bare", "30"), trial("bandwidth", "bare", "30")}}
	page, err := Recorded([]Run{one, two})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| KSI 2 | Figure 7 | round trips to a server on bare metal | measured in part: Podman without a cluster instead of KSI; sockperf instead of netperf; " +
			"[one](one/report.md): on bare, berth, podman-slirp4netns; seconds=1 (in the paper: 30); bytes=200; 1 to 2 runs (in the paper: 10); without Bridge Operator, HPK |\n",
		"drivers of rootless networks | measured in part: by Podman instead of nerdctl; sockperf instead of netperf; " +
			"[one](one/report.md): on bare, podman-slirp4netns; seconds=1 (in the paper: 30); bytes=200; 1 run (in the paper: 10); without bypass4netns, pasta (too \\| old) |\n",
		"| KSI 2 | Figure 8 | bandwidth to a server on bare metal | not measured: [two](two/report.md): bare metal alone was; without Bridge Operator, HPK, KSI; the plan ksi has it |\n",
		"| KSI 2 | Figure 4 | memory, STREAM | not measured: [two](two/report.md): of this case no trial has succeeded",
		"| KSI 2 | Figure 3 | CPU, sysbench | not measured: the plan ksi has it, and no recorded run |\n",
		"| KSI 2 | Figure 1 | models of integration | not a measurement |\n",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("no row %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%.6000s", page)
	}
	if _, err := Recorded(nil); err == nil {
		t.Error("a page of nothing")
	}
}
