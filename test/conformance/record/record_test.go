package main

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	good    = "[sig-apps] Job should run [Conformance]"
	flawed  = "[sig-node] Pods should | fail [Serial] [Conformance]"
	mended  = "[sig-node] Pods should pass in the end [Conformance]"
	missing = "[sig-auth] nobody asked for this one [Conformance]"
)

// report makes a report of two rounds. The second one was cut short.
func report(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("b-1/conditions", "date: 2026-01-01T10:00:00Z\nslurm: 22.05: as it is\nside by side: 4\n")
	write("b-1/junit_01.xml", `<testsuites><testsuite name="Kubernetes e2e suite">
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"></testcase>
<testcase name="[It] `+good+`" status="passed" time="2.4"></testcase>
<testcase name="[It] `+flawed+`" status="failed" time="3"><failure type="failed">[FAILED] pod is late
more</failure><system-err>what it said</system-err></testcase>
<testcase name="[It] `+mended+`" status="timedout" time="4"><failure type="timedout">too slow</failure></testcase>
<testcase name="[It] `+missing+`" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
</testsuite></testsuites>`)
	write("a-1/conditions", "date: 2026-01-01T11:00:00Z\nslurm: 22.05: as it is\nside by side: 1\n")
	write("a-1/junit_01.xml", `<testsuites><testsuite name="Kubernetes e2e suite">
<testcase name="[It] `+mended+`" status="passed" time="5"></testcase>
<testcase name="[It] `+good+`" status="interrupted" time="1"><error type="interrupted">cut</error></testcase>
</testsuite></testsuites>`)
	// A round that was killed before it could write anything.
	write("c-1/conditions", "date: 2026-01-01T12:00:00Z\n")
	write("list", strings.Join([]string{good, flawed, mended, missing}, "\n")+"\n")
	return dir
}

func ask(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := answer(&out, args)
	return out.String(), err
}

func TestRemainingWork(t *testing.T) {
	dir := report(t)
	list := filepath.Join(dir, "list")
	for _, try := range []struct{ word, dir, want string }{
		{"pending", dir, missing + "\n"},
		{"failed", dir, flawed + "\n"},
		{"pending", filepath.Join(dir, "none"), strings.Join([]string{good, flawed, mended, missing}, "\n") + "\n"},
	} {
		got, err := ask(t, try.word, list, try.dir)
		if err != nil || got != try.want {
			t.Errorf("%s: got %q, %v; want %q", try.word, got, err, try.want)
		}
	}
}

func TestPage(t *testing.T) {
	dir := report(t)
	list, causes := filepath.Join(dir, "list"), filepath.Join(dir, "causes.md")
	text := "# Causes\n\n## " + flawed + "\nThe kernel.\n\n## " + mended + "\nWe mended it.\n"
	if err := os.WriteFile(causes, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	page, err := ask(t, "page", list, dir, causes)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"**2 of 4 passed**, 1 failed, 1 were not run.",
		"- slurm: 22.05: as it is\n",
		"| b-1 | 2026-01-01T10:00:00Z | 1 | 2 | side by side 4 |\n| a-1 |",
		"## Failed\n\n### \\[sig-node\\] Pods should \\| fail",
		"- b-1: failed after 3 s: `pod is late`\n\nThe kernel.\n",
		"- b-1: failed after 4 s: `too slow`\n- a-1: passed after 5 s\n\nWe mended it.\n",
		"| passed | 2 | \\[sig-apps\\] Job should run",
		"| not run |  | \\[sig-auth\\]",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}

	// The page is the same when made of the merged file.
	merged, err := ask(t, "merge", dir)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	if _, err := writer.Write([]byte(merged)); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "junit.xml.gz")
	if err := os.WriteFile(file, packed.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	again, err := ask(t, "page", list, file, causes)
	if err != nil || again != page {
		t.Errorf("the page from the merged file differs: %v\n%s", err, again)
	}
}

func TestNoFailureWithoutCause(t *testing.T) {
	dir := report(t)
	causes := filepath.Join(dir, "causes.md")
	if err := os.WriteFile(causes, []byte("## "+flawed+"\nThe kernel.\n\n## "+good+"\nIt did not fail.\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := ask(t, "page", filepath.Join(dir, "list"), dir, causes)
	for _, want := range []string{mended, good} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no complaint about %q: %v", want, err)
		}
	}
}
