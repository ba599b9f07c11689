package sandbox

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestExplainKeys(t *testing.T) {
	full := explainKeys(fmt.Errorf("make a session keyring: %w", unix.EDQUOT))
	for _, want := range []string{"make a session keyring: disk quota exceeded", "cat /proc/key-users", "remove some", "sysctl -w kernel.keys.maxkeys=5000"} {
		if !strings.Contains(full.Error(), want) {
			t.Errorf("%v, want %q", full, want)
		}
	}
	if other := explainKeys(unix.ENOMEM); other.Error() != unix.ENOMEM.Error() {
		t.Errorf("another error is explained: %v", other)
	}
}
