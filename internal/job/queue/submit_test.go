package queue

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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

// A process was stopped before it called sbatch, and another one has submitted the job.
func TestLateSubmissionKeepsTheNumber(t *testing.T) {
	s := &site{}
	c := newClient(t, s)
	folder := Folder(c.options.State, "u")
	withSbatch(t, fmt.Sprintf("echo 100 >%s/%s\necho 101\n", folder, NumberName))
	if id, err := c.Submit(t.Context(), Job{UID: "u", Script: []byte("#!/bin/sh\n")}); id != "100" || err != nil {
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
	if id, err := c.Submit(t.Context(), Job{UID: "u", Script: []byte("#!/bin/sh\n")}); id != "101" || err != nil || readNumber(folder) != "101" {
		t.Errorf("%q, %v; recorded %q", id, err, readNumber(folder))
	}
}

// An unknown message may hide a submission. Only a refusal that is known to be one makes
// the next call submit at once.
func TestRefusalsThatLeaveTheScript(t *testing.T) {
	for message, want := range map[string]bool{"Message receive failure": true, "A message of a later Slurm": true, "QOSMaxSubmitJobPerUserLimit": false} {
		c := newClient(t, &site{})
		withSbatch(t, "echo 'sbatch: error: "+message+"' >&2\nexit 1\n")
		_, err := c.Submit(t.Context(), Job{UID: "u", Script: []byte("#!/bin/sh\n")})
		if err == nil {
			t.Errorf("%s: submitted", message)
		}
		_, err = os.Stat(filepath.Join(Folder(c.options.State, "u"), ScriptName))
		if (err == nil) != want {
			t.Errorf("%s: %v", message, err)
		}
	}
}
