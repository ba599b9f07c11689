package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestShare(t *testing.T) {
	page := `# HELP berth_fastpath_total ...
berth_fastpath_total{node="n1",outcome="accepted"} 7
berth_fastpath_total{node="n1",outcome="connected"} 3
berth_fastpath_total{node="n1",outcome="overlay: not TCP"} 5
berth_fastpath_total{node="n1",outcome="overlay: the node wants it so"} 1
`
	for name, test := range map[string]struct {
		page string
		want []float64
	}{
		"some":         {page, []float64{75}},
		"no fast path": {"berth_info 1\n", nil},
	} {
		own, values, err := share("{}\n\n" + countsMark + "\n" + test.page)
		if err != nil || own != "{}\n" || len(values) != len(test.want) || len(values) == 1 && values[0].Value != test.want[0] {
			t.Errorf("%s: %q, %v, %v", name, own, values, err)
		}
	}
	if own, values, err := share("{}\n"); err != nil || own != "{}\n" || values != nil {
		t.Errorf("without counters: %q, %v, %v", own, values, err)
	}
}

// TestCountedAfter runs what a pod would run: the program's code is the pod's.
func TestCountedAfter(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\n[ \"$*\" = 'wget -q -O - http://10.0.0.1:10247/metrics' ] && echo counters\n"
	if err := os.WriteFile(filepath.Join(dir, "busybox"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	argv := countedAfter([]string{"sh", "-c", "echo it; exit 3"})
	command := exec.Command(argv[0], argv[1:]...)
	command.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "NODE=10.0.0.1"}
	out, _ := command.Output()
	if want := "it\n\n" + countsMark + "\ncounters\n"; string(out) != want || command.ProcessState.ExitCode() != 3 {
		t.Errorf("%q, %v", out, command.ProcessState)
	}
}
