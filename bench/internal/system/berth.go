package system

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/bench/internal/record"
)

// berth starts a cluster for each task, in one step, and runs the task as a pod.
type berth struct {
	place Place
	// name is the system's name.
	name string
	// program is berth's name or path.
	program string
	options []string
	// hostNetwork puts the pods into the network of the cluster's nodes, and fast gives
	// them the fast path.
	hostNetwork, fast bool
	// form is the format of delivered images. Unless it is "oci", it is the suffix of
	// their names.
	form string
}

func (b *berth) Check(ctx context.Context) (map[string]string, error) {
	program, err := exec.LookPath(b.program)
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; 'make' builds berth. For berth with the stargz snapshotter, run 'make -C test/bench stargz' and put test/bench/out/stargz/bin on PATH", err)
	}
	if _, err := os.Stat(b.place.Archive); err != nil {
		return nil, fmt.Errorf("the image of the programs: %w", err)
	}
	libexec := filepath.Join(filepath.Dir(filepath.Dir(program)), "libexec", "berth")
	versions := map[string]string{}
	for _, argv := range [][]string{{program, "version"}, {filepath.Join(libexec, "containerd"), "--version"}} {
		said, err := b.place.ask(ctx, argv...)
		if err != nil {
			return nil, err
		}
		maps.Copy(versions, readVersions(said))
	}
	digest, err := digestOf(program, libexec)
	if err != nil {
		return nil, err
	}
	// Under the system's name, because a plan may have several builds of berth.
	if b.program != b.place.Berth {
		for _, name := range slices.Collect(maps.Keys(versions)) {
			versions[name+" of "+b.name] = versions[name]
			delete(versions, name)
		}
	}
	versions[programsOf+b.name] = digest
	return versions, nil
}

// programsOf begins the names of program digests.
const programsOf = "programs of "

// readVersions reads lines of names and versions, with a module's path between them.
func readVersions(text string) map[string]string {
	versions := map[string]string{}
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 1 {
			versions[words[0]] = words[len(words)-1]
		}
	}
	return versions
}

// digestOf returns a digest of a program and of all files in a folder, which distinguishes
// builds of one version. It follows symbolic links.
func digestOf(program, folder string) (string, error) {
	all := sha256.New()
	add := func(path string) error {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(all, file)
		return errors.Join(err, file.Close())
	}
	if err := add(program); err != nil {
		return "", fmt.Errorf("read the programs: %w", err)
	}
	var walk func(folder string) error
	walk = func(folder string) error {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			path := filepath.Join(folder, entry.Name())
			info, err := os.Stat(path) // follows links
			if err != nil {
				return err
			}
			fmt.Fprintln(all, entry.Name())
			if info.IsDir() {
				err = walk(path)
			} else {
				err = add(path)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk(folder); err != nil {
		return "", fmt.Errorf("read the programs: %w", err)
	}
	const few = 16
	return hex.EncodeToString(all.Sum(nil))[:few], nil
}

func (b *berth) Prepare(context.Context) error { return nil }

func (b *berth) Close(context.Context) error { return nil }

func (b *berth) Run(ctx context.Context, task Task) (Output, error) {
	switch {
	case task.Images != nil:
		return b.deliver(ctx, *task.Images)
	case task.Sequence != nil:
		what := *task.Sequence
		what.counted = b.fast && task.Connects
		return b.sequence(ctx, what)
	}
	if task.Window && !task.alone() {
		r := b.RunTogether(ctx, []Task{task})[0]
		return r.Output, r.Err
	}
	var out Output
	err := b.place.withServers(ctx, []Task{task}, func(tasks []Task) error {
		_, err := b.place.withFolder(ctx, task.Folder == Scratch, func(folder string) (_ Output, err error) {
			out, err = b.start(ctx, b.place.host(0), tasks, folder)
			return out, err
		})
		return err
	})
	out, wrong := takenApart(out, task, b.fast)
	if task.Alone {
		out.Values = append(out.Values, phases(out.Said)...)
	}
	return out, errors.Join(err, wrong)
}

// phase matches a line of progress that berth prints: the seconds since berth was started,
// and the step that has finished.
var phase = regexp.MustCompile(`(?m)^berth: +([0-9.]+)s  (\S.* (?:ready|imported|applied))$`)

// phases returns the time of each step that berth has printed during its start.
func phases(said string) []record.Value {
	var values []record.Value
	for _, match := range phase.FindAllStringSubmatch(said, -1) {
		if seconds, err := strconv.ParseFloat(match[1], 64); err == nil {
			values = append(values, record.Value{Name: "until " + match[2], Unit: "s", Better: "lower", Value: seconds})
		}
	}
	return values
}

// pair is the number of hosts that a client and its server use, even in a larger job.
const pair = 2

// alone reports whether a task always needs a separate cluster.
func (t Task) alone() bool { return t.Alone || t.Sequence != nil || t.Folder != NoFolder }

// RunTogether runs tasks in one cluster: tasks with servers run in pods on two
// hosts, the others on the first host.
func (b *berth) RunTogether(ctx context.Context, tasks []Task) []Result {
	results := make([]Result, len(tasks))
	inPods := func(t Task) bool { return t.Server != nil && t.Server.At != OnHost }
	for _, pods := range []bool{true, false} {
		var some []Task
		var at []int
		for i, t := range tasks {
			if t.Images != nil {
				results[i] = Result{Err: &Unsupported{"images are delivered to a cluster that runs nothing else: remove together from the plan"}}
				continue
			}
			if t.alone() {
				if pods { // once, and in a separate cluster
					start := time.Now()
					out, err := b.Run(ctx, t)
					results[i] = Result{Output: out, Err: err, Start: start, Took: time.Since(start)}
				}
				continue
			}
			if inPods(t) == pods {
				some, at = append(some, t), append(at, i)
			}
		}
		if len(some) == 0 {
			continue
		}
		hosts := b.place.host(0)
		if pods {
			hosts = b.place.first(pair)
			if b.place.SameHost {
				hosts = b.place.host(0)
			}
		}
		for i, r := range b.together(ctx, hosts, some, pods) {
			results[at[i]] = r
		}
	}
	return results
}

// together runs tasks in one cluster on hosts, and returns a result for each. pods is set
// if the tasks' servers run in pods.
func (b *berth) together(ctx context.Context, hosts []string, tasks []Task, pods bool) (results []Result) {
	fail := func(err error) []Result {
		for range tasks {
			results = append(results, Result{Err: err})
		}
		return results
	}
	if pods && len(hosts) < 2 && !b.place.SameHost {
		return fail(&Unsupported{"pods on two nodes need a job of two hosts"})
	}
	err := b.place.withServers(ctx, tasks, func(tasks []Task) error {
		out, err := b.start(ctx, hosts, tasks, "")
		if err != nil && !strings.Contains(out.Stdout, taskMark) {
			return err
		}
		for _, r := range apartAgain(out.Stdout, tasks, b.fast) {
			step := out.Step
			// The cost of the whole includes the start of the cluster, so no task gets it.
			step.CPUSeconds, step.Window, step.Left = 0, r.Output.Step.Window, r.Output.Step.Left
			r.Output.Step, r.Output.Submitted, r.Output.First, r.Output.Ended = step, out.Submitted, out.First, out.Ended
			if r.Err != nil && err != nil {
				r.Err = fmt.Errorf("%w; the whole: %w", r.Err, err)
			}
			results = append(results, r)
		}
		return nil
	})
	if err != nil && results == nil {
		return fail(err)
	}
	return results
}

// start starts a cluster on hosts, runs tasks in one pod, and returns the pod's output.
// The cluster ends with the pod. folder, if any, is the host's folder to mount.
func (b *berth) start(ctx context.Context, hosts []string, tasks []Task, folder string) (Output, error) {
	options := []string{"run", "--quiet"}
	if tasks[0].Alone {
		options = []string{"run"} // print the steps
	}
	options = append(options, "--image", b.place.Archive, "-f", "-")
	options = append(options, b.options...)
	options = append(options, "--fast-path", b.fastPath())
	if folder != "" {
		options = append(options, "--mount", folder+":"+inContainer)
	}
	text, err := manifest(tasks, objects{
		image: b.place.Image, hostNetwork: b.hostNetwork, mounted: folder != "", counted: b.fast, limit: b.place.Timeout, sameNode: b.place.SameHost,
	})
	if err != nil {
		return Output{}, err
	}
	place := b.place
	place.Timeout *= time.Duration(len(tasks) + 1) // each has its own limit
	out, err := place.run(ctx, place.measured(hosts, append([]string{b.program}, options...)), text)
	out.Stdout = ofMain(out.Stdout)
	return out, err
}

// fastPath returns the value for --fast-path.
func (b *berth) fastPath() string {
	if b.fast {
		return "auto"
	}
	return "off"
}

// mainPrefix begins the task's lines in berth's output if several containers print.
const mainPrefix = "[bench main] "

// ofMain returns the lines of the task in berth's output, without mainPrefix.
func ofMain(text string) string {
	if !strings.Contains(text, mainPrefix) {
		return text
	}
	var own strings.Builder
	for line := range strings.Lines(text) {
		if words, ok := strings.CutPrefix(line, mainPrefix); ok {
			own.WriteString(words)
		}
	}
	return own.String()
}
