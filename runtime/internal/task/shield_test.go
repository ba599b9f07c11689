package task

import (
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	gorunc "github.com/containerd/go-runc"
)

func TestOnlyProgramsOfContainersStartWithDefaultDispositions(t *testing.T) {
	var listened []string
	monitor := Shield(startOnly{}, "sandbox", func(id string) { listened = append(listened, id) })
	for _, test := range []struct {
		args string
		want uint64
	}{
		{"runc create container", 0},
		{"runc kill container", 3},
		{"runc exec container", 0},
		{"runc create sandbox", 3},
		{"runc delete sandbox", 3},
		{"runc create container", 0},
	} {
		var said strings.Builder
		// grep skips the words of runc, as there are no such files.
		c := exec.Command("grep", append([]string{"-hs", "SigIgn", "/proc/self/status"}, strings.Fields(test.args)...)...)
		c.Stdout = &said
		if _, err := monitor.Start(c); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		ignored, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(said.String(), "SigIgn:")), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		// Without real-time signals: children of make ignore two that are glibc's own.
		if got := ignored & (1<<31 - 1); got != test.want {
			t.Errorf("%s: ignored signals are %#x, want %#x", test.args, got, test.want)
		}
	}
	if want := []string{"container", "container", "container"}; !slices.Equal(listened, want) {
		t.Errorf("filters for processes of %q, want %q", listened, want)
	}
}

// startOnly starts commands.
type startOnly struct{ gorunc.ProcessMonitor }

func (startOnly) Start(c *exec.Cmd) (chan gorunc.Exit, error) { return nil, c.Start() }
