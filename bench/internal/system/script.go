package system

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/window"
)

// Marks between what a script's tasks print.
const (
	taskMark  = window.Mark + "task"
	endedMark = window.Mark + "ended "
	// countersMark begins the counters of connections: a page that was read may have none.
	countersMark = window.Mark + "counters"
)

// script runs tasks in a container, one after the other, each with what the machine
// did meanwhile. It looks the names of servers up itself: not every program takes
// names, and none is to be measured with it. Where connections are counted, their
// counters stand before the first task and after each.
func script(tasks []Task, o objects, folder string) string {
	var text strings.Builder
	text.WriteString(window.Functions)
	counters := ":"
	if o.counted {
		// The page is up to a second old.
		counters = `sleep 1.1; page=$(busybox wget -q -O - "http://$NODE:10247/metrics") || return 0
	echo '` + countersMark + `'; printf '%s\n' "$page" | busybox grep '^` + family + `'`
	}
	fmt.Fprintf(&text, "counters() { %s; }\ncounters\nworst=0\n", counters)
	// A program that hangs takes its own time, and not that of those after it.
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
		text.WriteString("exit 0\n") // each has its own
	}
	return text.String()
}

// words are arguments for a shell, with the server's address in its place.
func words(args []string) string {
	var all []string
	for _, arg := range args {
		quoted := "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		all = append(all, strings.ReplaceAll(quoted, ServerHere, `'"$server"'`))
	}
	return strings.Join(all, " ")
}

// apartAgain makes results of what a script printed, one for each task.
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

// one is the result of one task: what it printed, what the machine did, its exit
// code, and, where that is counted, how its connections were made: by the counters
// before and after it.
func one(text, before string, counted bool) (r Result, after string) {
	said, rest, found := strings.Cut(text, endedMark)
	if !found {
		r.Output.Stdout, r.Err = said, errors.New("it did not end")
		return r, before
	}
	code, after, _ := strings.Cut(rest, "\n")
	if !counted {
		after = before // nobody has read them
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
		r.Output.Values, r.Output.Step.Left = c.share(), c.left
	}
	return r, after
}

// family begins the counters of connections.
const family = "berth_fastpath_total{"

// counts are connections that a node's pods began.
type counts struct {
	// made are those that the hosts have made.
	made float64
	// left are those that were left to the overlay, by the reason.
	left map[string]float64
}

// elsewhere is why a connection to the page of counters itself is not the hosts'.
const elsewhere = "the address is no other node's pod"

// difference is what was counted between two readings. Between them is the
// connection by which the first was read; whether its own, or that of the second,
// was counted in time nobody knows: three or more are the task's.
func difference(before, after string) (counts, error) {
	c, err := read(after)
	if err != nil {
		return c, err
	}
	earlier, err := read(before)
	if err != nil {
		return c, err
	}
	c.made -= earlier.made
	for reason := range c.left {
		c.left[reason] -= earlier.left[reason]
	}
	if c.left[elsewhere]--; c.left[elsewhere] < 2 {
		c.left[elsewhere] = 0
	}
	maps.DeleteFunc(c.left, func(_ string, n float64) bool { return n <= 0 })
	return c, nil
}

// share is which part of the connections the hosts have made. That nothing was
// counted where counters were read is no proof of the fast path.
func (c counts) share() []record.Value {
	part := 0.0
	if c.made > 0 {
		all := c.made
		for _, n := range c.left {
			all += n
		}
		part = 100 * c.made / all
	}
	return []record.Value{{Name: record.Share, Unit: "%", Better: "higher", Value: part}}
}

// read reads counters. A page without any is one of a node that has made no
// connection, or has no fast path at all; one that could not be had says nothing.
func read(page string) (counts, error) {
	c := counts{left: map[string]float64{}}
	if !strings.Contains(page, countersMark) {
		return c, errors.New("the node's page of metrics could not be read: nobody knows who made the connections")
	}
	for line := range strings.Lines(page) {
		name, value, found := strings.Cut(strings.TrimSpace(line), "} ")
		_, outcome, is := strings.Cut(name, `outcome="`)
		if !found || !is || !strings.HasPrefix(name, family) {
			continue
		}
		outcome, _, _ = strings.Cut(outcome, `"`)
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return c, fmt.Errorf("read the counters of connections: %w", err)
		}
		reason, overlay := strings.CutPrefix(outcome, "overlay: ")
		switch {
		case outcome == "connected", outcome == "connected to the outside":
			c.made += n
		case overlay && reason != "not TCP":
			c.left[reason] += n
		}
	}
	return c, nil
}
