package system

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"berth.dev/berth/bench/internal/counters"
	"berth.dev/berth/bench/internal/window"
)

// Marks in the output of a script.
const (
	taskMark  = window.Mark + "task"
	endedMark = window.Mark + "ended "
	// countersMark comes before the counters of connections, even if a page has none.
	countersMark = window.Mark + "counters"
)

// script returns a shell script that runs tasks in a container, one after the other, and
// records the machine's activity during each. It resolves the names of servers, because
// not every program accepts names and the lookup must not be measured. If connections are
// counted, it prints their counters before the first task and after each.
func script(tasks []Task, o objects, folder string) string {
	var text strings.Builder
	text.WriteString(window.Functions)
	reading := ":"
	if o.counted {
		// The page is up to a second old.
		reading = `sleep 1.1; page=$(busybox wget -q -O - "http://$NODE:10247/metrics") || return 0
	echo '` + countersMark + `'; printf '%s\n' "$page" | busybox grep '^` + counters.Family + `'`
	}
	fmt.Fprintf(&text, "counters() { %s; }\ncounters\nworst=0\n", reading)
	// A program that hangs must not use up the time of the next tasks.
	limit := ""
	if o.limit > 0 {
		limit = fmt.Sprintf("busybox timeout -k 2 %d ", int(math.Ceil(o.limit.Seconds())))
	}
	for _, task := range tasks {
		fmt.Fprintf(&text, "echo '%s'\n", taskMark)
		if s := task.Server; s != nil && s.At != OnHost {
			name := o.name + "-server"
			if s.At == InPod {
				name += "-pod"
			}
			fmt.Fprintf(&text, "server=$(getent ahostsv4 %s); server=${server%%%%[!0-9.]*}\n", name)
		}
		fmt.Fprintf(&text, "machine before\n%s%s\ncode=$?; echo; machine after; echo \"%s$code\"; [ $code = 0 ] || worst=$code\n",
			limit, words(replace(task.Args, FolderHere, folder)), endedMark)
		if task.Connects {
			text.WriteString("counters\n")
		}
	}
	if len(tasks) == 1 {
		text.WriteString("exit $worst\n")
	} else {
		text.WriteString("exit 0\n") // the tasks' own exit codes are in the output
	}
	return text.String()
}

// words quotes arguments for a shell, and replaces ServerHere by the server's address.
func words(args []string) string {
	var all []string
	for _, arg := range args {
		quoted := "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		all = append(all, strings.ReplaceAll(quoted, ServerHere, `'"$server"'`))
	}
	return strings.Join(all, " ")
}

// apartAgain splits the output of a script into results, one for each task.
func apartAgain(text string, tasks []Task, counted bool) []Result {
	chunks := strings.Split(text, taskMark+"\n")
	results := make([]Result, len(tasks))
	before := chunks[0]
	for i := range results {
		if i+1 >= len(chunks) {
			results[i].Err = errors.New("it was not run")
			continue
		}
		results[i], before = one(chunks[i+1], before, counted && tasks[i].Connects)
	}
	return results
}

// takenApart returns the output of a pod's only task. If a script ran the task, it moves the
// machine's activity from Stdout to Step.Window.
func takenApart(out Output, task Task, counted bool) (Output, error) {
	if !task.Window || !strings.Contains(out.Stdout, taskMark) {
		return out, nil
	}
	r := apartAgain(out.Stdout, []Task{task}, counted)[0]
	out.Stdout, out.Step.Window = r.Output.Stdout, r.Output.Step.Window
	return out, r.Err
}

// one returns the result of one task: its output, the machine's activity and, if the exit
// code is not 0, an error. If connections are counted, the result has the share with the
// fast path. before and after are the counters that the script printed around the task.
func one(text, before string, counted bool) (r Result, after string) {
	said, rest, found := strings.Cut(text, endedMark)
	if !found {
		r.Output.Stdout, r.Err = said, errors.New("it did not end")
		return r, before
	}
	code, after, _ := strings.Cut(rest, "\n")
	if !counted {
		after = before // the script printed no counters after this task
	}
	var wrong error
	r.Output.Stdout, r.Output.Step.Window, wrong = window.Cut(said)
	if code != "0" {
		r.Err = fmt.Errorf("exit code %s: %s", code, lastWords(r.Output.Stdout))
		return r, after
	}
	r.Err = wrong
	if counted {
		c, err := difference(before, after)
		if err != nil {
			r.Err = errors.Join(wrong, err)
			return r, after
		}
		r.Output.Values, r.Output.Step.Left = c.Share(), c.Left
	}
	return r, after
}

// difference returns the counts of the connections between two readings of the counters.
func difference(before, after string) (counters.Counts, error) {
	now, err := read(after)
	if err != nil {
		return now, err
	}
	earlier, err := read(before)
	if err != nil {
		return earlier, err
	}
	return now.Since(earlier), nil
}

// read parses the counters in a script's output. It returns an error if the script could
// not read the node's page of metrics.
func read(page string) (counters.Counts, error) {
	if !strings.Contains(page, countersMark) {
		return counters.Counts{}, errors.New("the node's page of metrics could not be read, so it is unknown which connections used the fast path")
	}
	return counters.Read(page)
}
