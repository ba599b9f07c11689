package sited

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"berth.dev/berth/internal/site"
	"berth.dev/berth/internal/testutil"
	"berth.dev/berth/internal/vxlan"
)

// The processes of a pod end, by the daemon that has started it and by another one, which
// has to look for it; also when they have ended already.
func TestProcessesOfAPodEnd(t *testing.T) {
	testutil.Require(t, testutil.Root)
	dir := t.TempDir()
	program := filepath.Join(dir, "berth-pod")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "pid"), 0o755); err != nil {
		t.Fatal(err)
	}
	newDaemon := func() *Daemon {
		return &Daemon{config: site.Config{Run: dir, Pod: program}, firsts: map[string]*os.Process{}}
	}
	for name, test := range map[string]struct{ another, ended bool }{"the same": {}, "another": {another: true}, "ended": {ended: true}} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon()
			// Twice, as by two steps of a job.
			for range 2 {
				if err := d.startProcesses("1"); err != nil {
					t.Fatal(err)
				}
			}
			first := d.firsts["1"]
			if !vxlan.IsNamespace(d.processes("1")) {
				t.Fatal("there is no namespace")
			}
			alive := func() bool {
				_, err := os.Stat(filepath.Join("/proc", strconv.Itoa(first.Pid)))
				return err == nil
			}
			if test.ended {
				if err := first.Kill(); err != nil {
					t.Fatal(err)
				}
				testutil.Eventually(t, "the end of process 1", func() bool { return !alive() })
			}
			if test.another {
				d = newDaemon()
			}
			for range 2 {
				if err := d.endPod("1"); err != nil {
					t.Fatal(err)
				}
			}
			testutil.Eventually(t, "the end of process 1", func() bool { return !alive() })
			if _, err := os.Stat(d.processes("1")); !os.IsNotExist(err) {
				t.Errorf("the file is left: %v", err)
			}
		})
	}
}
