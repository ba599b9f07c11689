package cli

import (
	"slices"
	"testing"
)

func TestLogsSelectAllPodsByDefault(t *testing.T) {
	for _, args := range [][]string{nil, {"-f"}, {"-n", "web", "-f"}, {"--since", "5m"}} {
		if got := logArguments(args); !slices.Contains(got, "--prefix") || !slices.Contains(got, "--tail=-1") {
			t.Errorf("%q becomes %q", args, got)
		}
	}
	for _, args := range [][]string{{"web"}, {"-f", "job/train"}, {"-l", "app=web"}, {"-n", "web", "pod-1"}} {
		if got := logArguments(args); !slices.Equal(got, args) {
			t.Errorf("%q becomes %q", args, got)
		}
	}
	if got := logArguments([]string{"--tail=5"}); slices.Contains(got, "--tail=-1") {
		t.Errorf("the user's --tail is lost: %q", got)
	}
}
