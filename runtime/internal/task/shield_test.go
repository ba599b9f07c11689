package task

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	gorunc "github.com/containerd/go-runc"
)

func TestOnlyProgramsOfContainersStartWithDefaultDispositions(t *testing.T) {
	var listened []string
	monitor := Shield(startOnly{}, "sandbox", func(id string) { listened = append(listened, id) })
	for _, test := range []struct{ args, want string }{
		{"runc create container", "0000000000000000"},
		{"runc kill container", "0000000000000003"},
		{"runc exec container", "0000000000000000"},
		{"runc create sandbox", "0000000000000003"},
		{"runc delete sandbox", "0000000000000003"},
		{"runc create container", "0000000000000000"},
	} {
		var said strings.Builder
		// grep skips the words of runc, as there are no such files.
		c := exec.Command("grep", append([]string{"-hs", "SigIgn", "/proc/self/status"}, strings.Fields(test.args)...)...)
		c.Stdout = &said
		if _, err := monitor.Start(c); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		if got := strings.TrimSpace(strings.TrimPrefix(said.String(), "SigIgn:")); got != test.want {
			t.Errorf("%s: ignored signals are %s, want %s", test.args, got, test.want)
		}
	}
	if want := []string{"container", "container", "container"}; !slices.Equal(listened, want) {
		t.Errorf("filters for processes of %q, want %q", listened, want)
	}
}

// startOnly starts commands.
type startOnly struct{ gorunc.ProcessMonitor }

func (startOnly) Start(c *exec.Cmd) (chan gorunc.Exit, error) { return nil, c.Start() }
