package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/counters"
	"berth.dev/berth/bench/internal/record"
)

// missing skips a test that lacks a program, except where all programs must
// exist.
func missing(t *testing.T, program string) {
	t.Helper()
	if os.Getenv("BERTH_CI") != "" {
		t.Fatalf("there is no %s, which CI has to have", program)
	}
	t.Skip("there is no " + program)
}

// TestScript runs a pod's script, with fake look-ups and counters: each task has
// its own output, exit code, and share of connections.
func TestScript(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		missing(t, "busybox")
	}
	dir := t.TempDir()
	for name, script := range map[string]string{
		"getent": `[ $2 = bench-server ] && printf '10.1.2.3        STREAM web.default\n10.1.2.3        DGRAM\n'`,
		// Each call of wget shows three more connections, and the hosts made one
		// more of them each time.
		"busybox": `if [ "$1" = wget ]; then
	[ "$*" = 'wget -q -O - http://10.0.0.1:10247/metrics' ] || exit 1
	echo >>` + dir + `/calls; n=$(wc -l <` + dir + `/calls)
	echo "berth_fastpath_total{node=\"n1\",outcome=\"connected\"} $n"
	echo "berth_fastpath_total{node=\"n1\",outcome=\"overlay: the node wants it so\"} $((2 * n))"
	exit
fi
exec ` + busybox + ` "$@"`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	server := &Server{At: InService}
	tasks := []Task{
		{Args: []string{"printf", "%s|", ServerHere, "it's", "a " + ServerHere + ":80", "$HOME"}, Server: server, Connects: true},
		{Args: []string{"sh", "-c", "echo no; exit 3"}},
		{Args: []string{"sleep", "1000"}},
		{Args: []string{"echo", "end"}},
	}
	// Shorten the limit of only the task that hangs.
	text := strings.Replace(script(tasks, objects{name: "bench", counted: true, limit: 10 * time.Second}, ""), " 10 'sleep'", " 1 'sleep'", 1)
	command := exec.Command("sh", "-c", text)
	command.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "NODE=10.0.0.1"}
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	results := apartAgain(string(out), append(tasks, Task{}), true)
	if r := results[0]; r.Err != nil || r.Output.Stdout != "10.1.2.3|it's|a 10.1.2.3:80|$HOME|" {
		t.Errorf("%q, %v", r.Output.Stdout, r.Err)
	}
	if v := results[0].Output.Values; len(v) != 1 || v[0].Name != record.Share || v[0].Value < 33.3 || v[0].Value > 33.4 {
		t.Errorf("its share: %v", v)
	}
	if w := results[0].Output.Step.Window; w == nil || w.Processors < 1 {
		t.Errorf("its window: %+v", w)
	}
	for i, want := range map[int]string{1: "exit code 3: no", 2: "exit code 143", 4: "it was not run"} {
		if err := results[i].Err; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("task %d: %v, want %s", i, err, want)
		}
	}
	if w := results[2].Output.Step.Window; w == nil || w.Seconds < 0.9 {
		t.Errorf("what hung has the window %+v", w)
	}
	if r := results[3]; r.Err != nil || r.Output.Stdout != "end\n" {
		t.Errorf("the last: %q, %v", r.Output.Stdout, r.Err)
	}
	// The script of a single task ends with the program's exit code.
	if err := exec.Command("sh", "-c", script(tasks[1:2], objects{}, "")).Run(); err == nil || err.Error() != "exit status 3" {
		t.Errorf("alone: %v", err)
	}
	if r := apartAgain("[x]\n"+taskMark+"\nhalf", tasks[:1], true)[0]; r.Err == nil || r.Output.Stdout != "half" {
		t.Errorf("what was cut off: %+v", r)
	}
}

func TestShare(t *testing.T) {
	counter := func(outcome string, n int) string {
		return fmt.Sprintf("%snode=\"n1\",outcome=\"%s\"} %d\n", counters.Family, outcome, n)
	}
	const other, page = "overlay: " + counters.Elsewhere, countersMark + "\n"
	before := page + counter("connected", 3) + counter("overlay: not TCP", 5) + counter(other, 1)
	for name, test := range map[string]struct {
		before, after string
		want          float64
		left          int
	}{
		"some": {before, page + counter("accepted", 7) + counter("connected", 5) + counter("overlay: not TCP", 9) +
			counter(other, 2) + counter("connected to the outside", 1) + counter("overlay: the node wants it so", 1), 75, 1},
		"from the start": {page, page + counter("connected", 2), 100, 0},
		// Some readings include the connections of the readings themselves.
		"read late":    {before, page + counter("connected", 5) + counter(other, 3), 100, 0},
		"read early":   {before, page + counter("connected", 5) + counter(other, 1), 100, 0},
		"all left":     {before, page + counter("connected", 3) + counter(other, 4), 0, 1},
		"nothing seen": {before, before, 0, 0},
		"no fast path": {page, page, 0, 0},
	} {
		c, err := difference(test.before, test.after)
		if got := c.Share(); err != nil || len(got) != 1 || got[0].Name != record.Share || got[0].Value != test.want || len(c.Left) != test.left {
			t.Errorf("%s: %v, %v, %v", name, got, c.Left, err)
		}
	}
	if _, err := difference(page, page+counters.Family+`outcome="connected"} many`); err == nil {
		t.Error("a counter that is not a number")
	}
}

// TestUnreadCounters: a trial without counters is invalid, and so is the next
// one, because its counters would include the connections of both.
func TestUnreadCounters(t *testing.T) {
	read := func(n int) string {
		return fmt.Sprintf("%s\n%soutcome=\"connected\"} %d\n", countersMark, counters.Family, n)
	}
	task := func(name, counters string) string { return taskMark + "\n" + name + endedMark + "0\n" + counters }
	text := read(1) + task("a", read(2)) + task("b", "") + task("c", read(9)) + task("d", read(10)) + task("e", countersMark+"\n")
	tasks := []Task{{Connects: true}, {Connects: true}, {Connects: true}, {Connects: true}, {}}
	for i, r := range apartAgain(text, tasks, true) {
		switch {
		case i == 1 || i == 2:
			if r.Err == nil || !strings.Contains(r.Err.Error(), "could not be read") || r.Output.Values != nil {
				t.Errorf("task %d: %+v, %v", i, r.Output.Values, r.Err)
			}
		case r.Err != nil || (i == 4) != (r.Output.Values == nil):
			t.Errorf("task %d: %+v, %v", i, r.Output.Values, r.Err)
		case i != 4 && r.Output.Values[0].Value != 100:
			t.Errorf("task %d: %+v", i, r.Output.Values)
		}
	}
	// Without a fast path there is no share; with one, it is 0 % if nothing was counted.
	if r := apartAgain(task("a", ""), tasks[:1], false)[0]; r.Err != nil || r.Output.Values != nil {
		t.Errorf("no fast path: %+v", r)
	}
	if r := apartAgain(countersMark+"\n"+task("a", countersMark+"\n"), tasks[:1], true)[0]; r.Err != nil || len(r.Output.Values) != 1 || r.Output.Values[0].Value != 0 {
		t.Errorf("nothing counted: %+v", r)
	}
}
