package queue

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/job/slurm"
)

// listed holds one line of squeue or sacct: a job, an element of an array, all elements of an
// array that have not started, or a component of a heterogeneous job.
type listed struct {
	// root is the number of the job, of the array, or of the first component. part is
	// the ID that users see, such as 12_3.
	root, part                      string
	state, reason, partition, nodes string
	exitCode, signal, restarts      int
	submitted, start, end           time.Time
	name, stdout                    string
	comment, command                string
	isArray, isHeld                 bool
}

// snapshot holds the result of one call of squeue.
type snapshot struct {
	// began is the time before the call. before is the time before the last successful
	// call that preceded it.
	began, before time.Time
	jobs          []listed
	err           error
}

// snapshot returns the result of a call of squeue that began at the given time or later. It
// calls squeue at most once per interval. One call serves all callers that wait for it.
func (c *Client) snapshot(ctx context.Context, from time.Time) (*snapshot, error) {
	select {
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	// A failed call is repeated after an interval.
	if c.last == nil || c.last.began.Before(from) || c.last.err != nil && time.Since(c.last.began) >= c.options.Interval {
		if c.last != nil {
			if err := sleepUntil(ctx, c.last.began.Add(c.options.Interval)); err != nil {
				return nil, err
			}
		}
		next := &snapshot{began: time.Now()}
		if c.last != nil {
			next.before = c.last.began
			if c.last.err != nil {
				next.before = c.last.before
			}
		}
		next.jobs, next.err = c.squeue(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		c.last = next
	}
	return c.last, c.last.err
}

// fields names the columns of squeue and their widths in characters. squeue truncates longer
// values. Free text may contain any character, so each column ends with a random separator.
// The option --Format (-O) has columns for exit codes and restarts, which --format lacks.
var fields = []struct {
	name  string
	width int
}{
	{"JobID", 12}, {"JobArrayID", 64}, {"ArrayJobID", 12}, {"HetJobID", 12}, {"State", 24}, {"Reason", 200}, {"Partition", 64},
	{"NodeList", 200}, {"exit_code", 12}, {"SubmitTime", 20}, {"StartTime", 20}, {"EndTime", 20}, {"RestartCnt", 8},
	{"Name", 128}, {"STDOUT", 512}, {"Comment", 160}, {"Command", 0},
}

// squeue returns all jobs of the user that Slurm still knows, including ended ones and jobs in
// hidden partitions.
func (c *Client) squeue(ctx context.Context) ([]listed, error) {
	separator := "|" + rand.Text()[:10] + "|"
	format := make([]string, len(fields))
	for i, field := range fields {
		width := field.width
		if field.name == "Command" {
			// Enough for the path of a batch script, and the space after it.
			width = len(c.options.State) + 140
		}
		format[i] = field.name + ":" + strconv.Itoa(width) + separator
	}
	command := []string{"squeue", "--noheader", "--all", "--states=all", "--user=" + strconv.Itoa(os.Getuid()), "--Format=" + strings.Join(format, ",")}
	output, err := c.options.Ask(ctx, command...)
	if err != nil {
		return nil, &Unavailable{shorten(err, command)}
	}
	return parseListed(output, separator)
}

// parseListed parses the output of squeue, whose columns end with the separator. It returns an
// *Unavailable for any other output. The jobs have copies of their fields, because most of the
// output is padding.
func parseListed(output []byte, separator string) ([]listed, error) {
	values := bytes.Split(output, []byte(separator))
	if rest := values[len(values)-1]; len(bytes.TrimSpace(rest)) > 0 || len(values)%len(fields) != 1 {
		return nil, &Unavailable{errors.New("squeue printed lines that cannot be read: " + fmt.Sprintf("%.200q", output))}
	}
	jobs := make([]listed, 0, len(values)/len(fields))
	for row := range cap(jobs) {
		get := func(name string) string {
			for i, field := range fields {
				if field.name == name {
					value := string(bytes.TrimSpace(values[row*len(fields)+i]))
					if value == "N/A" || value == "(null)" {
						return ""
					}
					return value
				}
			}
			return ""
		}
		job := listed{
			root: get("ArrayJobID"), part: get("JobArrayID"), state: slurm.StateOf(get("State")), reason: get("Reason"),
			partition: get("Partition"), nodes: get("NodeList"), name: get("Name"), stdout: get("STDOUT"),
			comment: get("Comment"), command: get("Command"),
		}
		if job.root == "" {
			job.root = get("JobID")
		}
		if root := get("HetJobID"); root != "" && root != "0" {
			job.root = root
		}
		job.isArray = strings.Contains(job.part, "_")
		job.isHeld = job.state == slurm.Pending && strings.HasPrefix(job.reason, "JobHeld")
		job.stdout = expand(job.stdout, job)
		if job.reason == "None" {
			job.reason = ""
		}
		job.exitCode, job.signal = parseStatus(get("exit_code"))
		job.restarts, _ = strconv.Atoi(get("RestartCnt"))
		for name, to := range map[string]*time.Time{"SubmitTime": &job.submitted, "StartTime": &job.start, "EndTime": &job.end} {
			// An unknown time is less important than the state.
			*to, _ = slurm.ParseTime(get(name))
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}

var placeholder = regexp.MustCompile(`%[0-9]*[jJAxuN%]`)

// expand replaces placeholders such as %j in the path of an output file, because squeue 22.05
// does not replace them.
func expand(path string, job listed) string {
	return placeholder.ReplaceAllStringFunc(path, func(text string) string {
		switch text[len(text)-1] {
		case 'j', 'J', 'A':
			width, _ := strconv.Atoi(text[1 : len(text)-1])
			return fmt.Sprintf("%0*d", min(width, 10), number(job.root))
		case 'x':
			return job.name
		case 'u':
			return os.Getenv("USER")
		case 'N':
			if nodes, err := slurm.ExpandHosts(job.nodes); err == nil && len(nodes) > 0 {
				return nodes[0]
			}
		case '%':
			return "%"
		}
		return text
	})
}

// parseStatus parses an exit status. squeue prints the status of wait(2), and sacct prints
// CODE:SIGNAL.
func parseStatus(text string) (code, signal int) {
	if first, second, ok := strings.Cut(text, ":"); ok {
		code, _ = strconv.Atoi(first)
		signal, _ = strconv.Atoi(second)
		return code, signal
	}
	status, _ := strconv.Atoi(text)
	return status >> 8 & 0xff, status & 0x7f
}

// find returns the job of an object, or the zero value. It omits jobs that were replaced. Of
// several jobs it prefers one that is not held, and then the one with the lowest number.
func (s *snapshot) find(uid, folder string, replaced []string) submission {
	best := listed{}
	for _, job := range s.jobs {
		if !job.belongs(uid, folder) || slices.Contains(replaced, job.root) {
			continue
		}
		if best.root == "" || best.isHeld && !job.isHeld || best.isHeld == job.isHeld && number(job.root) < number(best.root) {
			best = job
		}
	}
	version, _ := best.script(folder)
	return submission{best.root, version}
}

// belongs reports whether a job was submitted for an object with this folder. It also compares
// the command, because a plugin of the site may have changed the comment.
func (l listed) belongs(uid, folder string) bool {
	_, ok := l.script(folder)
	return ok || l.object() == uid
}

// script reports whether the command of a job is a batch script in a folder, and returns the
// version in its name. The version is "" for a script of an earlier version of berth.
func (l listed) script(folder string) (version string, ok bool) {
	rest, ok := strings.CutPrefix(l.command, filepath.Join(folder, ScriptName))
	rest, _, _ = strings.Cut(rest, " ")
	if !ok || rest == "" {
		return "", ok
	}
	return strings.CutPrefix(rest, "-")
}

// object returns the UID of an object in a job's comment, or "". Only the first word counts:
// the rest is free text of the object.
func (l listed) object() string {
	word, _, _ := strings.Cut(l.comment, " ")
	uid, ok := strings.CutPrefix(word, marker)
	if !ok {
		return ""
	}
	return uid
}

// number parses the number of a job. It returns 0 for any other text.
func number(id string) int {
	n, _ := strconv.Atoi(id)
	return n
}
