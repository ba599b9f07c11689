package pidns

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"berth.dev/berth/internal/site/vxlan"
	"berth.dev/berth/internal/testutil"
)

// The processes of a pod are killed by the daemon that started it, and by another
// one, which has to search for it. Both also work if the processes have already
// ended.
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
	newProcesses := func() *Namespaces {
		return New(filepath.Join(dir, "pid"), program)
	}
	for name, test := range map[string]struct{ another, ended bool }{"the same": {}, "another": {another: true}, "ended": {ended: true}} {
		t.Run(name, func(t *testing.T) {
			p := newProcesses()
			// Do it twice, as for two steps of a job.
			for range 2 {
				if err := p.Start("1"); err != nil {
					t.Fatal(err)
				}
			}
			first := p.firsts["1"]
			if !vxlan.IsNamespace(p.File("1")) {
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
				p = newProcesses()
			}
			for range 2 {
				if err := p.End("1"); err != nil {
					t.Fatal(err)
				}
			}
			testutil.Eventually(t, "the end of process 1", func() bool { return !alive() })
			if _, err := os.Stat(p.File("1")); !os.IsNotExist(err) {
				t.Errorf("the file is left: %v", err)
			}
		})
	}
}
