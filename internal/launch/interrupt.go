package launch

import (
	"fmt"
	"syscall"
)

// Interrupted is the cause of a run that a signal ended: the exit code is that
// of a shell.
func Interrupted(signal syscall.Signal) error {
	return &Failure{Code: exitSignalBase + int(signal), Err: fmt.Errorf("ended by signal %d (%s)", int(signal), signal)}
}
