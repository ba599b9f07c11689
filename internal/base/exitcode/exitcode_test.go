package exitcode

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
)

func TestInnermostCodeIsKept(t *testing.T) {
	err := Wrap(Unavailable, fmt.Errorf("start: %w", Wrap(NoSpace, errors.New("full"))))
	if got := Of(err); got != NoSpace {
		t.Errorf("exit code %d, want %d", got, NoSpace)
	}
	if err := Wrap(Usage, nil); err != nil || Of(err) != 0 {
		t.Errorf("no error became %v", err)
	}
	if got := Of(errors.New("unknown")); got != Internal {
		t.Errorf("exit code %d for an error without one, want %d", got, Internal)
	}
}

func TestOfStatusMatchesShell(t *testing.T) {
	for status, want := range map[syscall.WaitStatus]int{
		0: 0, 7 << 8: 7, syscall.WaitStatus(syscall.SIGKILL): 137,
	} {
		if got := OfStatus(status); got != want {
			t.Errorf("status %#x: exit code %d, want %d", uint32(status), got, want)
		}
	}
}
