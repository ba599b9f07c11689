package script

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/job/permit"
)

// describe returns the description of an object whose script has the given #SBATCH lines.
func describe(t *testing.T, lines ...string) Description {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	text := "#!/bin/sh\n"
	for _, line := range lines {
		text += "#SBATCH " + line + "\n"
	}
	return Description{UID: "u1", Object: "demo/cow", Script: []byte(text + "true\n"), State: filepath.Join(root, "state"), Roots: []string{root}}
}

func TestOptionsOfScriptAndObject(t *testing.T) {
	d := describe(t, "-J fromscript -N1-2 -t 5", "--mem 3G --export=NONE -o out/%x-%j.log --comment 'group a'", "--quiet --gres=gpu:2 --exclusive -C intel")
	d.Partition, d.Nodes, d.TimeLimit, d.Features = "long", 4, 90*time.Minute, []string{"cuda"}
	job, err := Build(d)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"--ignore-pbs", "--job-name=fromscript", "--nodes=1-2", "--time=5", "--mem=3G", "--export=NONE", "--output=out/%x-%j.log", "--gres=gpu:2", "--exclusive",
		"--constraint=intel", "--partition=long", "--nodes=4", "--constraint=cuda&intel", "--time=1:30:00", "--chdir=" + d.Roots[0],
	}
	if !slices.Equal(job.Options, want) {
		t.Errorf("got  %q\nwant %q", job.Options, want)
	}
	if job.Comment != "group a" || job.Dir != d.Roots[0] || string(job.UserScript) != string(d.Script) {
		t.Errorf("%+v", job)
	}
}

func TestJobIsNamedAfterItsObject(t *testing.T) {
	job, err := Build(describe(t))
	if err != nil || !slices.Contains(job.Options, "--job-name=demo.cow") {
		t.Errorf("%q, %v", job.Options, err)
	}
}

func TestComponentsOfHeterogeneousJobs(t *testing.T) {
	d := describe(t, "-N1", "hetjob", "-N2")
	d.Partition = "p"
	job, err := Build(d)
	dir := "--chdir=" + d.Roots[0]
	want := []string{"--ignore-pbs", "--nodes=1", "--job-name=demo.cow", "--partition=p", dir, ":", "--nodes=2", "--job-name=demo.cow", "--partition=p", dir}
	if err != nil || !slices.Equal(job.Options, want) {
		t.Errorf("got  %q, %v\nwant %q", job.Options, err, want)
	}
}

// Each of these options would give the creator of an object more rights than intended, or is
// malformed.
func TestDeniedOptions(t *testing.T) {
	for _, line := range []string{
		"--uid=0", "--ui=0", "--gid 0", "--wrap=id", "--wr id", "-M other", "--clusters=all", "--hold", "-H", "--propagate=ALL", "--bb=x", "--bbf=/etc/passwd",
		"--export-file=/etc/passwd", "--nodefile=/etc/passwd", "-F /etc/passwd", "-w ./hosts", "-x /etc/passwd", "--test-only", "--help", "--priority=1",
		"--reboot", "--core-spec=0", "-S0", "--container=/x", "--network=x", "--unknown-to-slurm=1", "--unknown", "-Z",
		"--job-name=../../x", "-J..", "-o /etc/x", "-e ../x", "--output=a/../../x", "-i /etc/shadow", "--input=/dev/stdin", "-D /", "--chdir=..",
		"--export=SLURM_CONF=/x", "--export=a-b=c", "--export-file=3", "stray", "-- -J x", "--profile=all", "--get-user-env --uid=0",
		"--mail-type=\vEND", "--output=", "--=x", "--=", "--gres=help", "--gres LIST", "--mail-user=-X/tmp/x", "'--uid=0'", `--u\id=0`, `"--gid" 0`,
	} {
		if job, err := Build(describe(t, line)); err == nil {
			t.Errorf("%s: sbatch receives %q", line, job.Options)
		}
	}
}

func TestDeniedPathSaysWhichFoldersAreAllowed(t *testing.T) {
	d := describe(t)
	d.Output = "/etc/x"
	_, err := Build(d)
	denied := new(permit.Denied)
	if !errors.As(err, &denied) || denied.Option != "output" || !strings.Contains(err.Error(), d.Roots[0]) {
		t.Errorf("%v", err)
	}
}

func TestPathsBehindSymbolicLinks(t *testing.T) {
	d := describe(t)
	outside := t.TempDir()
	for name, to := range map[string]string{"out": outside, "dead": "/nowhere/at/all", "in": ".", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(d.Roots[0], name)); err != nil {
			t.Fatal(err)
		}
	}
	for output, want := range map[string]bool{"out/x": false, "out/%j/x": false, "dead": false, "dead/x": false, "loop/x": false, "in/x": true, "new/folder/%j": true, "/dev/null": true} {
		d.Output = output
		if _, err := Build(d); (err == nil) != want {
			t.Errorf("%s: %v", output, err)
		}
	}
	d.Output, d.Dir = "x", "out"
	if _, err := Build(d); err == nil {
		t.Error("the working directory is behind a symbolic link")
	}
	d.Roots[0] = filepath.Join(d.Roots[0], "in")
	d.Dir = ""
	if _, err := Build(d); err != nil {
		t.Errorf("a root that is a symbolic link: %v", err)
	}
}

func TestScriptWithoutInterpreterIsRefused(t *testing.T) {
	for _, text := range []string{"", "echo\n", "\n#!/bin/sh\n", "#!\n", "#!/bin/sh\r\n"} {
		d := describe(t)
		d.Script = []byte(text)
		if _, err := Build(d); err == nil {
			t.Errorf("%q", text)
		}
	}
	for text, want := range map[string][]string{"#! /usr/bin/env  python3 -u \nx": {"/usr/bin/env", "python3 -u"}, "#!/bin/sh": {"/bin/sh"}, "#!/bin/sh\t-e\n": {"/bin/sh", "-e"}} {
		if got, err := interpreter([]byte(text)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
