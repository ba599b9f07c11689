// Package deliver rolls images out on the nodes of a cluster, one after the other, runs
// their programs there, and records the times. It runs beside the cluster and uses
// kubectl. Package cases interprets the times.
package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/bench/internal/registry"
)

// Work is the use of a delivered image.
type Work string

// The kinds of work.
const (
	// Workers delivers the image to all nodes, and then runs a worker on each.
	Workers Work = "workers"
	// Pipeline runs the pipeline with its checkpoints in one container.
	Pipeline Work = "pipeline"
)

// Spec configures a delivery.
type Spec struct {
	// Folder is a folder that all hosts see, and Inside its path in containers.
	Folder, Inside string
	// Registry is the URL of the registry.
	Registry string
	// Images lists names of images in the registry, such as patch:v1.
	Images []string
	Work   Work
	Nodes  int
	// MemoryMB is the memory request of a worker, which also requests one core. If it is
	// 0, no workers run.
	MemoryMB int
	// Usage is a command that prints the CPU seconds of each host. Before is a command
	// to run before the first image. Both may be empty.
	Usage, Before []string
	// Timeout limits the whole delivery.
	Timeout time.Duration
}

// Inside is the mount point of a trial's folder in containers.
const Inside = "/bench"

// Result holds the times of each image.
type Result struct {
	Images []Image `json:"images"`
}

// Image holds the times of one image, in seconds. First, Fetched and Checkpoints count
// from the request of the image.
type Image struct {
	Name string `json:"name"`
	// First holds the times of the containers' first instructions, one for each node.
	First []float64 `json:"first,omitempty"`
	// Pull holds the pull times that the kubelets report, or the time to make a SIF file.
	Pull []float64 `json:"pull,omitempty"`
	// Fetched is the time when the registry had sent the last byte of a layer or a
	// configuration; 0 if it sent none.
	Fetched float64 `json:"fetched,omitempty"`
	// Bytes counts the bytes of layers and configurations that the registry sent.
	Bytes int64 `json:"bytes"`
	// Size is the size of the image in the registry, in bytes.
	Size int64 `json:"size,omitempty"`
	// CPU is the CPU time that the roll-out used on all hosts.
	CPU float64 `json:"cpu,omitempty"`
	// Sandbox and Packing are the times of the two parts of making a SIF file.
	Sandbox float64 `json:"sandbox,omitempty"`
	Packing float64 `json:"packing,omitempty"`
	// Run is the time from the start of the workers until all have finished.
	Run float64 `json:"run,omitempty"`
	// Checkpoints holds the times of the pipeline's checkpoints.
	Checkpoints []float64 `json:"checkpoints,omitempty"`
}

const (
	// poll is the time between two reads of await's folder.
	poll = 5 * time.Millisecond
	// settle is the pause between the start of a cluster and the first image.
	settle = 3 * time.Second
	// look is the time between two checks of unlessFailed for failed Jobs and pulls. Most
	// waits end before the first check. A roll-out, whose CPU time is measured, uses
	// lookRarely instead.
	look, lookRarely = 20 * time.Second, time.Minute
)

// Main runs a delivery and prints the result.
func Main(ctx context.Context, text string) error {
	var s Spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("read what to deliver: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.Timeout, fmt.Errorf("it took longer than %s", s.Timeout))
	defer cancel()
	result, err := s.deliver(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("%w; events: %s", err, s.events(context.WithoutCancel(ctx)))
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

func (s Spec) deliver(ctx context.Context) (result Result, err error) {
	if err := s.ready(ctx); err != nil {
		return result, err
	}
	if len(s.Before) > 0 {
		if _, err := output(ctx, s.Before, ""); err != nil {
			return result, fmt.Errorf("run the command before the first image: %w", err)
		}
	}
	for n, name := range s.Images {
		if err := Begin(ctx, s.Registry, name); err != nil {
			return result, err
		}
		image := Image{Name: name}
		if s.Work == Pipeline {
			err = s.pipeline(ctx, n, &image)
		} else {
			err = s.workers(ctx, n, &image)
		}
		if err != nil {
			return result, fmt.Errorf("deliver %s: %w", name, err)
		}
		result.Images = append(result.Images, image)
	}
	return result, nil
}

// ready waits until all nodes are ready, and then for the time of settle.
func (s Spec) ready(ctx context.Context) error {
	for {
		text, err := kubectl(ctx, "", "get", "nodes", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && strings.Count(text, "True") == s.Nodes {
			break
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return fmt.Errorf("wait for %d nodes: %w", s.Nodes, err)
		}
	}
	return sleep(ctx, settle)
}

// workers rolls an image out on all nodes and then runs the workers.
func (s Spec) workers(ctx context.Context, n int, image *Image) error {
	out, err := s.folder(n)
	if err != nil {
		return err
	}
	before, err := s.usage(ctx)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("bench-%d", n)
	start := time.Now()
	if err := create(ctx, "/apis/apps/v1/namespaces/default/daemonsets", s.rollout(name, n, image.Name)); err != nil {
		return err
	}
	var times []time.Time
	err = unlessFailed(ctx, name, lookRarely, func(ctx context.Context) (err error) {
		times, err = await(ctx, out, "first-", s.Nodes)
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for first instructions: %w", err)
	}
	image.First = since(start, times)
	after, err := s.usage(ctx)
	if err != nil {
		return err
	}
	image.CPU = after - before
	if err := Sent(ctx, s.Registry, start, image); err != nil {
		return err
	}
	if image.Pull, err = s.pulls(ctx, name, time.Minute); err != nil {
		return err
	}
	if s.MemoryMB > 0 {
		start = time.Now()
		if err := create(ctx, "/apis/batch/v1/namespaces/default/jobs", s.work(name, n, image.Name)); err != nil {
			return err
		}
		limit := fmt.Sprintf("--timeout=%ds", int(s.Timeout.Seconds()))
		err := unlessFailed(ctx, name, look, func(ctx context.Context) error {
			_, err := kubectl(ctx, "", "wait", "--for=condition=complete", limit, "job/"+name)
			return err
		})
		if err != nil {
			return fmt.Errorf("wait for the workers: %w", err)
		}
		image.Run = time.Since(start).Seconds()
	}
	// Wait until the containers of the roll-out have ended. Otherwise their CPU time would
	// count for the next image.
	if _, err = kubectl(ctx, "", "delete", "daemonset/"+name, "--cascade=foreground", "--timeout=2m"); err != nil {
		return fmt.Errorf("end the roll-out: %w", err)
	}
	return nil
}

// noImage matches the waiting reason of pods with a failed pull, and the
// kubelet's message.
var noImage = regexp.MustCompile(`(?m)^(?:ErrImagePull|ImagePullBackOff)\t.*`) //nolint:gochecknoglobals // a constant

// unlessFailed runs a wait for a Job or a roll-out, and ends it if the Job or a pull has
// failed: a pull that the kubelet repeats cannot be measured. It checks rarely, because
// each check disturbs the measurement.
func unlessFailed(ctx context.Context, name string, every time.Duration, wait func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for sleep(ctx, every) == nil {
			failed, err := kubectl(ctx, "", "get", "job/"+name, "-o", "jsonpath={.status.failed}")
			if failed = strings.TrimSpace(failed); err == nil && failed != "" && failed != "0" {
				cancel(fmt.Errorf("a pod of the job %s has failed", name))
			}
			waiting, err := kubectl(ctx, "", "get", "pods", "-o",
				`jsonpath={range .items[*].status.containerStatuses[*].state.waiting}{.reason}{"\t"}{.message}{"\n"}{end}`)
			if said := noImage.FindString(waiting); err == nil && said != "" {
				cancel(fmt.Errorf("an image did not come: %s", strings.ReplaceAll(said, "\t", ": ")))
			}
		}
	}()
	err := wait(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	cancel(nil)
	<-ended
	return err
}

// pipeline runs the pipeline in one container, and reads its checkpoints.
func (s Spec) pipeline(ctx context.Context, n int, image *Image) error {
	out, err := s.folder(n)
	if err != nil {
		return err
	}
	start := time.Now()
	name := fmt.Sprintf("bench-%d", n)
	if err := create(ctx, "/apis/batch/v1/namespaces/default/jobs", s.stages(name, n, image.Name)); err != nil {
		return err
	}
	var times []time.Time
	err = unlessFailed(ctx, name, look, func(ctx context.Context) (err error) {
		times, err = await(ctx, out, "cp", 3)
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for checkpoints: %w", err)
	}
	image.Checkpoints = since(start, times)
	return Sent(ctx, s.Registry, start, image)
}

// folder returns the folder that containers of the nth image write to.
func (s Spec) folder(n int) (string, error) {
	out := filepath.Join(s.Folder, strconv.Itoa(n))
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", fmt.Errorf("make a folder for times: %w", err)
	}
	return out, nil
}

// usage returns the CPU time of all hosts so far, in seconds.
func (s Spec) usage(ctx context.Context) (total float64, err error) {
	if len(s.Usage) == 0 {
		return 0, nil
	}
	text, err := output(ctx, s.Usage, "")
	if err != nil {
		return 0, fmt.Errorf("ask for CPU times: %w", err)
	}
	for word := range strings.FieldsSeq(text) {
		seconds, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU times: %w", err)
		}
		total += seconds
	}
	return total, nil
}

// pulled matches a kubelet's report of a pull time, without and with the wait for other
// pulls. readPulls takes the second, which is the time that the pod waited.
var pulled = regexp.MustCompile(`in ([0-9.a-zµ]+) \(([0-9.a-zµ]+) including waiting\)`) //nolint:gochecknoglobals // a constant

// pulls returns the pull times, in seconds, from the events of a roll-out's pods. It
// polls, because the events arrive late, and returns an error if some are missing after
// the timeout.
func (s Spec) pulls(ctx context.Context, name string, timeout time.Duration) ([]float64, error) {
	for deadline := time.Now().Add(timeout); ; {
		text, err := kubectl(ctx, "", "get", "events", "--field-selector=reason=Pulled", "-o", `jsonpath={range .items[*]}{.involvedObject.name}{"\t"}{.message}{"\n"}{end}`)
		if err != nil {
			return nil, err
		}
		found := readPulls(text, name)
		if len(found) >= s.Nodes {
			return found, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the kubelets reported %d pulls, but there are %d nodes", len(found), s.Nodes)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func readPulls(text, name string) (seconds []float64) {
	for line := range strings.Lines(text) {
		pod, message, _ := strings.Cut(line, "\t")
		if !strings.HasPrefix(pod, name+"-") {
			continue
		}
		if match := pulled.FindStringSubmatch(message); match != nil {
			if took, err := time.ParseDuration(match[2]); err == nil {
				seconds = append(seconds, took.Seconds())
			}
		} else if strings.Contains(message, "already present") {
			seconds = append(seconds, 0)
		}
	}
	return seconds
}

// events returns the cluster's last events, for an error.
func (s Spec) events(ctx context.Context) string {
	const timeout, few = 10 * time.Second, 4
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	text, err := kubectl(ctx, "", "get", "events", "--sort-by=.metadata.creationTimestamp", "-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
	if err != nil {
		return "unknown"
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-few):], " | ")
}

// await waits until a folder has count files whose names begin with prefix. It returns the
// times in these files, in the order of the names.
func await(ctx context.Context, folder, prefix string, count int) ([]time.Time, error) {
	for {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, err
		}
		var times []time.Time
		for _, entry := range entries {
			if !strings.HasPrefix(entry.Name(), prefix) || strings.HasSuffix(entry.Name(), ".part") {
				continue
			}
			content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
			if err != nil {
				return nil, err
			}
			at, err := ReadTime(string(content))
			if err != nil {
				return nil, err
			}
			times = append(times, at)
		}
		if len(times) >= count {
			return times, nil
		}
		if err := sleep(ctx, poll); err != nil {
			return nil, err
		}
	}
}

// clock matches times as date and Python print them: seconds since 1970, with or without
// a fraction.
var clock = regexp.MustCompile(`^([0-9]+)(?:\.([0-9]{1,9}))?$`) //nolint:gochecknoglobals // a constant

// ReadTime parses a time that a container has printed, in seconds since 1970.
func ReadTime(text string) (time.Time, error) {
	text = strings.TrimSpace(text)
	match := clock.FindStringSubmatch(text)
	if match == nil {
		return time.Time{}, fmt.Errorf("read the container's time: %q is not a time", text)
	}
	const nanoseconds = 9 // digits
	whole, err1 := strconv.ParseInt(match[1], 10, 64)
	part, err2 := strconv.ParseInt(match[2]+strings.Repeat("0", nanoseconds-len(match[2])), 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return time.Time{}, fmt.Errorf("read the container's time: %w", err)
	}
	return time.Unix(whole, part), nil
}

func since(start time.Time, times []time.Time) (seconds []float64) {
	for _, t := range times {
		seconds = append(seconds, t.Sub(start).Seconds())
	}
	return seconds
}

// Begin makes the registry at a URL read an image into the page cache and count the bytes
// that it sends, starting from 0.
func Begin(ctx context.Context, at, image string) error {
	_, err := get(ctx, at+registry.BeginPath+url.QueryEscape(image))
	return err
}

// Sent asks a registry what it has sent since Begin, and sets the image's Bytes, Size and
// Fetched. start is the time of the image's request.
func Sent(ctx context.Context, at string, start time.Time, image *Image) error {
	content, err := get(ctx, at+registry.SentPath)
	if err != nil {
		return err
	}
	var sent registry.Sent
	if err := json.Unmarshal(content, &sent); err != nil {
		return fmt.Errorf("read what the registry has sent: %w", err)
	}
	image.Bytes, image.Size = sent.Bytes, sent.Image
	if sent.Bytes > 0 {
		image.Fetched = sent.Last.Sub(start).Seconds()
	}
	return nil
}

func get(ctx context.Context, url string) (content []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	// The registry is local, so ignore the environment's proxy.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the registry: %w", err)
	}
	defer answer.Body.Close()
	content, err = io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("ask the registry: %s: %s", answer.Status, strings.TrimSpace(string(content)))
	}
	return content, err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// create creates an object with a single request.
func create(ctx context.Context, path string, o object) error {
	text, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode an object for %s: %w", path, err)
	}
	_, err = kubectl(ctx, string(text), "create", "--raw", path, "-f", "-")
	return err
}

func kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return output(ctx, append([]string{"kubectl"}, args...), stdin)
}

func output(ctx context.Context, argv []string, stdin string) (string, error) {
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Stdin = strings.NewReader(stdin)
	var said strings.Builder
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", argv[0], strings.Join(argv[1:min(3, len(argv))], " "), err, strings.TrimSpace(said.String()))
	}
	return string(out), nil
}
