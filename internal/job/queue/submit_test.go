package queue

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// withSbatch puts an sbatch into PATH that runs a script.
func withSbatch(t *testing.T, text string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sbatch"), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// beside returns a second client with the same folder of state.
func beside(t *testing.T, c *Client, s *site) *Client {
	t.Helper()
	options := Default(c.options.State, slog.New(slog.DiscardHandler))
	options.Ask, options.Interval = s.ask, 0
	other, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	return other
}

// prepared returns a function that returns a job.
func prepared(job Job) func() (Job, error) {
	return func() (Job, error) { return job, nil }
}

// A process was stopped before it called sbatch, and another one has submitted the job.
func TestLateSubmissionKeepsTheNumber(t *testing.T) {
	s := &site{}
	c := newClient(t, s)
	folder := Folder(c.options.State, "u")
	withSbatch(t, fmt.Sprintf("echo 100 >%s/%s\necho 101\n", folder, NumberName))
	if id, err := c.Submit(t.Context(), "u", "1", prepared(Job{Script: []byte("#!/bin/sh\n")})); id != "100" || err != nil {
		t.Errorf("submitted: %q, %v", id, err)
	}
	if !slices.Contains(s.asked, "scancel 101") {
		t.Errorf("asked %q", s.asked)
	}
	if id, found, err := beside(t, c, s).Find(t.Context(), "u"); id != "100" || !found || err != nil {
		t.Errorf("found: %q, %v, %v", id, found, err)
	}
}

func TestDamagedNumberIsReplaced(t *testing.T) {
	s := &site{}
	c := newClient(t, s)
	folder := Folder(c.options.State, "u")
	withSbatch(t, fmt.Sprintf(": >%s/%s\necho 101\n", folder, NumberName))
	if id, err := c.Submit(t.Context(), "u", "1", prepared(Job{Script: []byte("#!/bin/sh\n")})); id != "101" || err != nil || readNumber(folder).id != "101" {
		t.Errorf("%q, %v; recorded %q", id, err, readNumber(folder))
	}
}

// An unknown message may hide a submission. Only a refusal that is known to be one makes
// the next call submit at once.
func TestRefusalsThatLeaveTheScript(t *testing.T) {
	for message, want := range map[string]bool{"Message receive failure": true, "A message of a later Slurm": true, "QOSMaxSubmitJobPerUserLimit": false} {
		c := newClient(t, &site{})
		withSbatch(t, "echo 'sbatch: error: "+message+"' >&2\nexit 1\n")
		_, err := c.Submit(t.Context(), "u", "1", prepared(Job{Script: []byte("#!/bin/sh\n")}))
		if err == nil {
			t.Errorf("%s: submitted", message)
		}
		begun, err := lastScript(Folder(c.options.State, "u"))
		if begun.IsZero() == want || err != nil {
			t.Errorf("%s: script of %v, %v", message, begun, err)
		}
	}
}

// An scancel that fails does not prevent the submission of the edited version.
func TestSubmitOfAnotherVersionWithoutScancel(t *testing.T) {
	s := &site{unable: errors.New("run scancel: signal: killed")}
	c := newClient(t, s)
	job := Job{Script: []byte("#!/bin/sh\n")}
	withSbatch(t, "echo 7\n")
	if id, err := c.Submit(t.Context(), "u", "1", prepared(job)); id != "7" || err != nil {
		t.Fatal(id, err)
	}
	s.rows = [][]string{row("7", "7", "PENDING", "JobHeldUser", "0", marker+"u", "/x")}
	job.UserScript = []byte("second")
	withSbatch(t, "echo 8\n")
	if id, err := beside(t, c, s).Submit(t.Context(), "u", "2", prepared(job)); id != "8" || err != nil {
		t.Errorf("got %q, %v", id, err)
	}
	if !slices.Contains(s.asked, "scancel 7") {
		t.Errorf("asked %q", s.asked)
	}
}

// The object was edited while the answer of sbatch was lost, so its held job is one of the old
// version.
func TestLostSubmissionOfAnotherVersion(t *testing.T) {
	for _, test := range []struct {
		name, state, reason string
		edited, crash       bool
		want                string
	}{
		{name: "edited", state: "PENDING", reason: "JobHeldUser", edited: true, want: "8"},
		{name: "edited, and the process ended after scancel", state: "PENDING", reason: "JobHeldUser", edited: true, crash: true, want: "8"},
		{name: "unchanged", state: "PENDING", reason: "JobHeldUser", want: "7"},
		{name: "edited after the job ran", state: "COMPLETED", reason: "None", edited: true, want: "7"},
	} {
		for _, comment := range []string{marker + "u", "changed by a plugin"} {
			s := &site{}
			c := newClient(t, s)
			first := Job{Script: []byte("#!/bin/sh\n"), UserScript: []byte("first")}
			withSbatch(t, "for last; do :; done; echo $last >$0.path\necho 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1\n")
			if _, err := c.Submit(t.Context(), "u", "1", prepared(first)); !errors.As(err, new(*Unavailable)) {
				t.Fatal(err)
			}
			path, err := exec.LookPath("sbatch")
			if err != nil {
				t.Fatal(err)
			}
			script, err := readSmall(path + ".path")
			if err != nil {
				t.Fatal(err)
			}
			s.rows = [][]string{row("7", "7", test.state, test.reason, "0", comment, strings.TrimSpace(script))}
			next, version := first, "1"
			if test.edited {
				next.UserScript, version = []byte("second"), "2"
			}
			if test.crash {
				withSbatch(t, "exit 1\n")
				if id, err := c.Submit(t.Context(), "u", version, prepared(next)); err == nil {
					t.Fatalf("submitted %s", id)
				}
				s.rows[0][4], s.rows[0][5] = "CANCELLED", "None"
			}
			withSbatch(t, "echo 8\n")
			c = beside(t, c, s)
			if id, err := c.Submit(t.Context(), "u", version, prepared(next)); id != test.want || err != nil {
				t.Errorf("%s: %q, %v", test.name, id, err)
			}
			if got := slices.Contains(s.asked, "scancel 7"); got != (test.want == "8") {
				t.Errorf("%s: asked %q", test.name, s.asked)
			}
			if id, found, err := beside(t, c, s).Find(t.Context(), "u"); id != test.want || !found || err != nil {
				t.Errorf("%s: found %q, %v, %v", test.name, id, found, err)
			}
			if text, err := readSmall(filepath.Join(Folder(c.options.State, "u"), UserScriptName)); err != nil || (text == "second") != (test.want == "8") {
				t.Errorf("%s: script %q, %v", test.name, text, err)
			}
		}
	}
}

// The image or the script's file of an object vanished after sbatch. The held job of this version of
// the object is used, the job of an earlier version is cancelled, and a job that ran is used.
func TestLostSubmissionOfAnObjectThatCannotBePreparedAgain(t *testing.T) {
	gone := errors.New("no such file")
	for _, test := range []struct{ version, reason, want string }{{"1", "JobHeldUser", "7"}, {"2", "JobHeldUser", ""}, {"2", "None", "7"}} {
		s := &site{}
		c := newClient(t, s)
		script, err := c.writeScript("u", "1", Job{Script: []byte("#!/bin/sh\n")})
		if err != nil {
			t.Fatal(err)
		}
		s.rows = [][]string{row("7", "7", "PENDING", test.reason, "0", marker+"u", script)}
		id, err := c.Submit(t.Context(), "u", test.version, func() (Job, error) { return Job{}, gone })
		if id != test.want || (test.want == "") != errors.Is(err, gone) {
			t.Errorf("%+v: %q, %v", test, id, err)
		}
		if got := slices.Contains(s.asked, "scancel 7"); got != (test.want == "") {
			t.Errorf("%+v: asked %q", test, s.asked)
		}
	}
}
