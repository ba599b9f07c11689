package task

import (
	"fmt"
	"os/exec"
	"runtime"
	"slices"

	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

// Unmask returns a monitor that starts runc as inner does, but without blocked
// signals where runc becomes a process of a container.
//
// The sandbox's init starts all roles with the signals blocked that reach every
// process of a job, and so the shim, runc and the CNI plugins survive them from
// their first instruction. The mask outlives execve(2), and a program in a
// container expects none. The container of the sandbox keeps it: pause blocks all
// signals anyway, and has no moment without protection then.
func Unmask(inner gorunc.ProcessMonitor, sandbox string) gorunc.ProcessMonitor {
	return unmasking{inner, sandbox}
}

type unmasking struct {
	gorunc.ProcessMonitor
	sandbox string
}

func (u unmasking) Start(c *exec.Cmd) (chan gorunc.Exit, error) {
	return u.start(c, u.ProcessMonitor.Start)
}

func (u unmasking) StartLocked(c *exec.Cmd) (chan gorunc.Exit, error) {
	return u.start(c, u.ProcessMonitor.StartLocked)
}

func (u unmasking) start(c *exec.Cmd, start func(*exec.Cmd) (chan gorunc.Exit, error)) (chan gorunc.Exit, error) {
	if !u.startsProgram(c.Args) {
		return start(c)
	}
	// A child inherits the mask of the thread that forks.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var none, before unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, &before); err != nil {
		return nil, fmt.Errorf("unblock signals for a container: %w", err)
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) //nolint:errcheck // it worked a moment ago
	return start(c)
}

// startsProgram reports whether runc is to make a process that executes a
// program of a container.
func (u unmasking) startsProgram(args []string) bool {
	return slices.Contains(args, "exec") || slices.Contains(args, "create") && args[len(args)-1] != u.sandbox
}
