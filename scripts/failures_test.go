package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestFailures compares what scripts/failures prints of the output of steps.
func TestFailures(t *testing.T) {
	many := ""
	for i := range 40 {
		many += "FAIL nodes case" + strconv.Itoa(i) + " (1 s)\n"
	}
	for _, test := range []struct{ name, output, names, lines string }{
		{
			"go", "ok  \ta\t1s\n--- FAIL: TestB (0.5s)\n    b_test.go:7: got 1\nFAIL\nFAIL\tb\t0.6s\n?   \tc\t[no test files]\n",
			"TestB (0.5s); b 0.6s",
			"--- FAIL: TestB (0.5s)\n    b_test.go:7: got 1\nFAIL\nFAIL\tb\t0.6s\n",
		},
		{
			"a hang", "panic: test timed out after 10m0s\n\trunning tests:\n\t\tTestB (9m4s)\n\n" + strings.Repeat("goroutine\n", 99) + "FAIL\tb\t600.0s\nok  \tc\t1s\n",
			"TestB (9m4s); b 600.0s",
			"panic: test timed out after 10m0s\n\trunning tests:\n\t\tTestB (9m4s)\n\ngoroutine\ngoroutine\ngoroutine\ngoroutine\ngoroutine\ngoroutine\nFAIL\tb\t600.0s\n",
		},
		{
			"the bed", "ok   jobs\n    test_power, line 9: never came true\nFAIL power\nok   run\n",
			"power",
			"    test_power, line 9: never came true\nFAIL power\n",
		},
		{
			"groups of cases", "bed: ends is up: ctl\nok   nodes span (9 s)\n    FAILED: no 'x'\nFAIL nodes talk (7 s)\n     nodes: 2 cases in 9 s, 1 failed\n     up: 1 cases in 9 s, 0 failed\n1 failed\n",
			"nodes talk (7 s)",
			"    FAILED: no 'x'\nFAIL nodes talk (7 s)\n     nodes: 2 cases in 9 s, 1 failed\n1 failed\n",
		},
		{
			"no test", "cc x.c\nx.c: no such file\n",
			"x.c: no such file",
			"cc x.c\nx.c: no such file\n",
		},
		{
			"many", many,
			"nodes case0 (1 s); nodes case1 (1 s); nodes case2 (1 s); nodes case3 (1 s); nodes case4 (1 s); nodes case5 (1 s); nodes case6 (1 s); nodes case7 (1 s); and 32 more",
			strings.Join(strings.SplitAfter(many, "\n")[:12], "") + "...\n" + strings.Join(strings.SplitAfter(many, "\n")[28:], ""),
		},
	} {
		file := filepath.Join(t.TempDir(), "said")
		if err := os.WriteFile(file, []byte(test.output), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, form := range []struct {
			arguments []string
			want      string
		}{{[]string{file}, test.lines}, {[]string{"-v", "names=1", file}, test.names + "\n"}} {
			output, err := exec.CommandContext(t.Context(), "./failures", form.arguments...).CombinedOutput()
			if err != nil || string(output) != form.want {
				t.Errorf("%s: %q (%v), want %q", test.name, output, err, form.want)
			}
		}
	}
}
