package allocation

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpenStepd(t *testing.T) {
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	for name, test := range map[string]struct {
		task  int
		found bool
	}{
		"this process":         {os.Getpid(), os.Getppid() > 1},
		"no ancestor":          {child.Process.Pid, false},
		"the first of all":     {1, false},
		"no process":           {1 << 30, false},
		"not a process at all": {-1, false},
	} {
		t.Run(name, func(t *testing.T) {
			stepd := openStepd(test.task)
			if stepd >= 0 {
				unix.Close(stepd)
			}
			if found := stepd >= 0; found != test.found {
				t.Errorf("openStepd(%d) found a process: %v, want %v", test.task, found, test.found)
			}
		})
	}
}
