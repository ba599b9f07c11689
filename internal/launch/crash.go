package launch

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/node/sandbox"
)

// KeepStderr gives this process another descriptor for its standard error.
// Descriptor 2, where Go's runtime reports a panic, is then free for
// catchCrash. The main function calls it before anything uses os.Stderr.
func KeepStderr() {
	if kept, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3); err == nil {
		os.Stderr = os.NewFile(uintptr(kept), "/dev/stderr")
	}
}

// catchCrash leads what the runtime writes about a panic of this process to the
// janitor. The process is then aborted: the code of an ordinary panic, 2, could be the
// workload's.
func (r *run) catchCrash() (*sandbox.Crash, error) {
	stderr, isFile := r.Stderr.(*os.File)
	if !isFile || stderr.Fd() == 2 {
		return nil, nil // not the main program
	}
	output, err := linux.MemoryFile("crash", nil)
	if err != nil {
		return nil, err
	}
	if err := unix.Dup3(int(output.Fd()), 2, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("catch panics: %w", err), output.Close())
	}
	debug.SetTraceback("crash")
	r.crash = &sandbox.Crash{Output: output, Stderr: stderr, Whose: "the supervisor of node " + r.plan.Node.Name}
	if r.Spec.DebugDir != "" {
		r.crash.Keep = r.log("panic")
	}
	return r.crash, nil
}

// letCrash undoes catchCrash once there is no janitor.
func (r *run) letCrash() error {
	if r.crash == nil {
		return nil
	}
	debug.SetTraceback("single")
	return errors.Join(unix.Dup3(int(r.crash.Stderr.Fd()), 2, 0), r.crash.Output.Close())
}
