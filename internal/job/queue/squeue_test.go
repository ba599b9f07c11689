package queue

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

// recorded returns the recorded output of squeue 22.05.8 for jobs of many kinds.
func recorded(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/squeue-22.05.txt")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestParseListed(t *testing.T) {
	jobs, err := parseListed(recorded(t), "|SEP|")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]listed{}
	for _, job := range jobs {
		got[job.part] = job
	}
	if len(got) != 22 {
		t.Errorf("%d jobs", len(got))
	}
	at := func(clock string) time.Time {
		moment, err := time.ParseInLocation(time.DateTime, "2026-11-28 "+clock, time.Local)
		if err != nil {
			t.Fatal(err)
		}
		return moment
	}
	for part, want := range map[string]listed{
		"1": {
			root: "1", state: "CANCELLED", reason: "JobHeldUser", name: "a\nb|cé", stdout: "/home/alice/slurm-1.out", comment: "u:abc hello|x",
			command: "/home/alice/odd dir/ü,x/t.sh one two three", submitted: at("13:04:36"), start: at("13:05:13"), end: at("13:05:13"),
		},
		"9": {
			root: "9", state: "FAILED", reason: "NonZeroExitCode", nodes: "n1", exitCode: 3, name: "ex3", stdout: "/home/alice/slurm-9.out",
			submitted: at("13:05:14"), start: at("13:05:14"), end: at("13:05:15"),
		},
		"10": {
			root: "10", state: "FAILED", reason: "JobLaunchFailure", nodes: "n1", signal: 9, name: "k9", stdout: "/home/alice/slurm-10.out",
			submitted: at("13:05:14"), start: at("13:05:14"), end: at("13:05:15"),
		},
		"15_[2-4%1]": {
			root: "15", state: "PENDING", reason: "JobArrayTaskLimit", name: "w", stdout: "/home/alice/slurm-15.out", comment: "berth-object=array-uid rest",
			submitted: at("13:09:35"), isArray: true,
		},
		"18+1": {
			root: "18", state: "PENDING", reason: "JobHeldUser", name: "s.sh", stdout: "/home/alice/slurm-19.out", comment: "berth-object=het",
			command: "/home/alice/s.sh", submitted: at("13:09:35"), isHeld: true,
		},
		"21": {
			root: "21", state: "PENDING", reason: "BeginTime", name: "requeued", stdout: "/home/alice/slurm-21.out",
			submitted: at("13:09:37"), start: at("13:11:38"), restarts: 1,
		},
	} {
		want.part, want.partition = part, "main"
		if got[part] != want {
			t.Errorf("job %s:\n got %+v\nwant %+v", part, got[part], want)
		}
	}
}

func TestParseListedRefusesOtherOutput(t *testing.T) {
	for _, output := range []string{"error", string(recorded(t)[:400]), "x" + string(recorded(t)) + "rest"} {
		if jobs, err := parseListed([]byte(output), "|SEP|"); err == nil {
			t.Errorf("%d jobs", len(jobs))
		}
	}
	if jobs, err := parseListed(nil, "|SEP|"); err != nil || len(jobs) != 0 {
		t.Errorf("no jobs: %v, %v", jobs, err)
	}
}

// A job of a client is recognized by its comment, or by the path of its script if a plugin has
// changed the comment.
func TestSubmittedJobs(t *testing.T) {
	s := &site{}
	c := newClient(t, s)
	s.rows = [][]string{
		row("7", "7", "PENDING", "JobHeldUser", "0", marker+"a more", ""),
		row("8", "8", "RUNNING", "None", "0", "changed", Folder(c.options.State, "b")+"/"+ScriptName+"-1"),
		row("9", "9", "PENDING", "None", "0", "x "+marker+"c", "/home/alice/run.sh"),
	}
	jobs, err := c.Submitted(t.Context())
	if err != nil || len(jobs) != 2 || jobs[0].UID != "a" || jobs[0].ID != "7" || !jobs[0].Held || jobs[1].UID != "b" || jobs[1].State != "RUNNING" {
		t.Errorf("%+v, %v", jobs, err)
	}
}

// Variables of the user change what squeue lists, and the format of times.
func TestSqueueListsAllJobs(t *testing.T) {
	dir := t.TempDir()
	text := "#!/bin/sh\necho \"$*\" >" + dir + "/words\nenv >" + dir + "/env\n"
	if err := os.WriteFile(filepath.Join(dir, "squeue"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, name := range []string{"SQUEUE_PARTITION", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_CONF"} {
		t.Setenv(name, "x")
	}
	c, err := New(Default(t.TempDir(), slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	if jobs, err := c.squeue(t.Context()); err != nil || len(jobs) > 0 {
		t.Fatalf("%+v, %v", jobs, err)
	}
	words, _ := readSmall(filepath.Join(dir, "words"))
	env, _ := readSmall(filepath.Join(dir, "env"))
	if !strings.Contains(words, "--all ") || strings.Contains(env, "SQUEUE_") || strings.Contains(env, "SLURM_CLUSTERS") ||
		strings.Contains(env, "SLURM_TIME") || !strings.Contains(env, "SLURM_CONF=x") {
		t.Errorf("squeue %s with\n%s", words, env)
	}
}

func FuzzParseListed(f *testing.F) {
	f.Add(recorded(f))
	f.Fuzz(func(t *testing.T, output []byte) {
		fuzzbound.Watch(t)
		jobs, _ := parseListed(output, "|SEP|")
		s := snapshot{jobs: jobs}
		_ = s.find("held", "/home/alice", nil)
	})
}

func BenchmarkParseListed(b *testing.B) {
	output := bytes.Repeat(recorded(b), 90) // of 1,980 jobs
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseListed(output, "|SEP|"); err != nil {
			b.Fatal(err)
		}
	}
}
