package cli

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestQuietAndVerboseExcludeEachOther(t *testing.T) {
	for _, command := range []string{"run", "up", "down"} {
		root := newRoot()
		root.SetArgs([]string{command, "-q", "-v"})
		root.SetOut(io.Discard)
		var usage *usageError
		if err := root.Execute(); !errors.As(err, &usage) || err.Error() != "--quiet and --verbose exclude each other" {
			t.Errorf("%s: %v", command, err)
		}
	}
}

func TestMistakesInOptionsNameTheExpectedValue(t *testing.T) {
	for argument, want := range map[string]string{
		"--node-wait=soon":     `--node-wait "soon": give a time such as 30s, 5m or 1h30m`,
		"--nodes-per-host=two": `--nodes-per-host "two": give a whole number`,
		"--no-pull=perhaps":    `--no-pull "perhaps": give true or false`,
		"--no-such-thing":      "unknown flag: --no-such-thing",
		"--iamge":              "unknown flag: --iamge; is it --image?",
	} {
		root := newRoot()
		root.SetArgs([]string{"run", argument})
		root.SetOut(io.Discard)
		if err := root.Execute(); err == nil || err.Error() != want {
			t.Errorf("%s: %v", argument, err)
		}
	}
}

// The variable in --kubeconfig "$KUBECONFIG" may not be set. That must not start a cluster.
func TestEmptyKubeconfigIsRefused(t *testing.T) {
	for _, command := range []string{"run", "submit"} {
		root := newRoot()
		root.SetArgs([]string{command, "--kubeconfig", "", "--pin", "-f", "job.yaml"})
		root.SetOut(io.Discard)
		var usage *usageError
		if err := root.Execute(); !errors.As(err, &usage) || !strings.HasPrefix(err.Error(), "--kubeconfig is empty") {
			t.Errorf("%s: %v", command, err)
		}
	}
}
