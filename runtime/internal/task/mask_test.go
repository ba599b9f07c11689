package task

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

func TestOnlyProgramsOfContainersStartWithoutBlockedSignals(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var blocked, before unix.Sigset_t
	blocked.Val[0] = 1 << (unix.SIGTERM - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &before); err != nil {
		t.Fatal(err)
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) //nolint:errcheck // it worked above
	monitor := Unmask(startOnly{}, "sandbox")
	for _, test := range []struct {
		args string
		want bool
	}{
		{"runc create container", false},
		{"runc exec container", false},
		{"runc create sandbox", true},
		{"runc kill container", true},
		{"runc delete sandbox", true},
	} {
		var said strings.Builder
		// grep skips the words of runc, as there are no such files.
		c := exec.Command("grep", append([]string{"-hs", "SigBlk", "/proc/self/status"}, strings.Fields(test.args)...)...)
		c.Stdout = &said
		if _, err := monitor.Start(c); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		if got := strings.Contains(said.String(), "0000000000004000"); got != test.want || said.Len() == 0 {
			t.Errorf("%s: SIGTERM blocked: %t, want %t: %s", test.args, got, test.want, said.String())
		}
	}
}

// startOnly starts commands.
type startOnly struct{ gorunc.ProcessMonitor }

func (startOnly) Start(c *exec.Cmd) (chan gorunc.Exit, error) { return nil, c.Start() }
