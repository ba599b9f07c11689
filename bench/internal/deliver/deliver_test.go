package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReadPulls(t *testing.T) {
	const text = "bench-1-abcde\tSuccessfully pulled image \"10.0.0.1:5/patch:v1\" in 89ms (1.5s including waiting). Image size: 258083974 bytes.\n" +
		"bench-1-fghij\tContainer image \"10.0.0.1:5/patch:v1\" already present on machine\n" +
		"bench-10-abcde\tSuccessfully pulled image \"x\" in 1m2s (1m2s including waiting). Image size: 1 bytes.\n" +
		"bench-1-abcde\tCreated container\nbench-1"
	if got := readPulls(text, "bench-1"); !slices.Equal(got, []float64{1.5, 0}) {
		t.Errorf("got %v", got)
	}
	if got := readPulls(text, "bench-10"); !slices.Equal(got, []float64{62}) {
		t.Errorf("got %v", got)
	}
}

func TestReadTime(t *testing.T) {
	for text, want := range map[string]time.Time{"12.5\n": time.Unix(12, 5e8), "12.000000001": time.Unix(12, 1), " 12\n": time.Unix(12, 0), "12.123456\n": time.Unix(12, 123456000)} {
		if got, err := ReadTime(text); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "now", "12.%N", "1.-5", "1.5e3", "1.", "-1", "+1", "0x1", "1.0000000001", "99999999999999999999", "1 2"} {
		if got, err := ReadTime(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

func TestReadStat(t *testing.T) {
	const fields = " S 1 2 3 4 5 6 7 8 9 10 100 200 300 400 20 0\n"
	if name, seconds, ok := readStat("7 (a) (b)" + fields); name != "a) (b" || seconds != 10 || !ok {
		t.Errorf("got %q, %g, %t", name, seconds, ok)
	}
	for _, text := range []string{"", "7", ")(", "7 (a) S 1", "7 (a)" + strings.ReplaceAll(fields, "200", "x")} {
		if _, _, ok := readStat(text); ok {
			t.Errorf("%q is taken for the state of a process", text)
		}
	}
	if uid, ok := readOwner("Name:\ta\nUid:\t1000\t0\t0\t0\n"); uid != 1000 || !ok {
		t.Errorf("got %d, %t", uid, ok)
	}
	if _, ok := readOwner("Name:\ta\n"); ok {
		t.Error("a process without a user")
	}
}

func TestUsage(t *testing.T) {
	if seconds, err := Usage(); err != nil || seconds < 0 {
		t.Errorf("%g, %v", seconds, err)
	}
}

// TestAwait: incomplete files do not count.
func TestAwait(t *testing.T) {
	dir := t.TempDir()
	put := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("first-n2", "2.5\n")
	put("first-n1", "1\n")
	put("first-n3.part", "")
	put("worker-0", "{}")
	times, err := await(t.Context(), dir, "first-", 2)
	if err != nil || !slices.Equal(since(time.Unix(1, 0), times), []float64{0, 1.5}) {
		t.Errorf("%v, %v", times, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := await(ended, dir, "first-", 3); err == nil {
		t.Error("it waits for more than there are, and has an end")
	}
	put("first-n3", "nothing")
	if _, err := await(t.Context(), dir, "first-", 3); err == nil {
		t.Error("a time that is none")
	}
	if _, err := await(t.Context(), filepath.Join(dir, "none"), "first-", 1); err == nil {
		t.Error("a folder that is not there")
	}
}

// TestObjects: created objects have the image in the registry, and the command of each
// pod.
func TestObjects(t *testing.T) {
	s := Spec{Inside: "/bench/times-1", Registry: "http://10.0.0.1:5000", Nodes: 2, MemoryMB: 500}
	for _, c := range []struct {
		made object
		want []string
	}{
		{s.rollout("bench-0", 0, "patch:v1"), []string{`"kind":"DaemonSet"`, `"$(OUT)/first-$(NODE)"`, `"/bench/times-1/0"`}},
		{s.work("bench-1", 1, "patch:v1"), []string{`"completions":2`, `"memory":"500M"`, `/bench/shards $OUT 2 $JOB_COMPLETION_INDEX`}},
		{s.stages("bench-2", 2, "patch:v1"), []string{`"/opt/pipeline.py","/bench/times-1/2"`}},
	} {
		// The input of kubectl.
		given := filepath.Join(t.TempDir(), "given")
		fakeKubectl(t, "cat >"+given)
		if err := create(t.Context(), "/path", c.made); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(given)
		if err != nil || !json.Valid(text) {
			t.Errorf("no JSON: %s, %v", text, err)
		}
		for _, want := range append(c.want, `"image":"10.0.0.1:5000/patch:v1"`) {
			if !strings.Contains(string(text), want) {
				t.Errorf("no %s in %s", want, text)
			}
		}
	}
	if err := create(t.Context(), "/path", object{"a": func() {}}); err == nil {
		t.Error("what has no JSON")
	}
}

// fakeKubectl puts a script named kubectl on PATH.
func fakeKubectl(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestUnlessFailed: the failure of a Job ends the wait for it.
func TestUnlessFailed(t *testing.T) {
	untilEnd := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for name, test := range map[string]struct {
		script string
		wait   func(context.Context) error
		want   string
	}{
		"failed": {`[ "$*" = "get job/j -o jsonpath={.status.failed}" ] && echo 1`, untilEnd, "a pod of the job j has failed"},
		"no image": {
			`[ "$2" = pods ] && printf 'ContainerCreating\t\nImagePullBackOff\tBack-off pulling image: no layer\n'`, untilEnd,
			"an image did not come: ImagePullBackOff: Back-off pulling image: no layer",
		},
		"done":      {`echo 1`, func(context.Context) error { return nil }, ""},
		"no answer": {`exit 1`, func(context.Context) error { return errors.New("it waited") }, "it waited"},
	} {
		fakeKubectl(t, test.script)
		err := unlessFailed(t.Context(), "j", time.Millisecond, test.wait)
		if (err == nil) != (test.want == "") || err != nil && err.Error() != test.want {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// TestTooFewPulls: without the report of one kubelet, the slowest pull is unknown.
func TestTooFewPulls(t *testing.T) {
	fakeKubectl(t, `printf 'bench-0-a\tPulled in 1s (1s including waiting)\nbench-0-b\tPulled in 2s (3s including waiting)\n'`)
	if got, err := (Spec{Nodes: 2}).pulls(t.Context(), "bench-0", time.Minute); err != nil || !slices.Equal(got, []float64{1, 3}) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := (Spec{Nodes: 3}).pulls(t.Context(), "bench-0", time.Millisecond); err == nil || !strings.Contains(err.Error(), "2 pulls, but there are 3 nodes") {
		t.Errorf("got %v, %v", got, err)
	}
}
