package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/kube/containerlog"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/node/sandbox"
)

// FollowArg starts this program again as the process that follows a workload.
// main calls FollowRole then.
const FollowArg = "follow-role"

// Names of the files of the process that follows a workload.
const (
	fdEvents = "events" // receives followEvents, one line of JSON each
	fdOutput = "output" // receives frames of output, and frames with Steps
	fdLife   = "life"   // is closed when the supervisor ends
)

// followConfig is the configuration of the process that follows a workload.
type followConfig struct {
	Kubeconfig []byte
	Objects    []followObject
	NoPull     bool
	IDs        string
	Existing   bool
	Partitions bool
	Logs       []string
	Followed   workload.Followed
}

type followObject struct {
	Object map[string]any
	Source string
}

// followEvent is a message from the process. One of Warn, Inform, Listed, Step and Result is
// set.
type followEvent struct {
	Warn, Inform string
	// Listed reports that all pods that exist have been seen.
	Listed bool `json:",omitempty"`
	Step   *workload.Step
	// Result ends the events. Error comes with it if following the workload failed, and
	// Stuck if a pod can never start; output of other pods may still come then.
	Result *workload.Result
	Stuck  *workload.NeverStarts
	Error  string
}

// FollowRole runs the process that follows a workload, and returns the exit status.
func FollowRole() int {
	sandbox.OutliveSignals() // the supervisor ends this process
	if err := followHere(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func followHere() error {
	var config followConfig
	files, err := linux.ReceiveFiles(&config, fdEvents, fdOutput, fdLife)
	if err != nil {
		return fmt.Errorf("read what to follow: %w", err)
	}
	go func() {
		_, _ = files[fdLife].Read(make([]byte, 1))
		os.Exit(1)
	}()
	client, err := workload.NewClient(config.Kubeconfig)
	if err != nil {
		return err
	}
	selection, err := workload.NewSelection(config.Logs)
	if err != nil {
		return err
	}
	var objects []workload.Object
	for _, object := range config.Objects {
		objects = append(objects, workload.Object{Unstructured: &unstructured.Unstructured{Object: object.Object}, Source: object.Source})
	}
	sender := &followSender{events: files[fdEvents], output: bufio.NewWriterSize(files[fdOutput], 64<<10)}
	result, err := client.Follow(context.Background(), objects, workload.Streams{
		Out: frameWriter{sender.output, containerlog.KindStdout}, Err: frameWriter{sender.output, containerlog.KindStderr},
		Warn:   func(text string) { sender.send(followEvent{Warn: text}) },
		Inform: func(text string) { sender.send(followEvent{Inform: text}) },
		Listed: func() { sender.send(followEvent{Listed: true}) },
		NeverStarts: func(stuck *workload.NeverStarts) {
			sender.send(followEvent{Result: &workload.Result{}, Stuck: stuck})
		},
		NoPull: config.NoPull, IDs: config.IDs, Existing: config.Existing, Partitions: config.Partitions, Logs: selection,
		Progress: workload.NewProgress(config.Followed, sender.step),
	})
	last := followEvent{Result: &result}
	if err != nil {
		last.Error = err.Error()
	}
	sender.send(last)
	return nil
}

// followSender sends events and output to the supervisor.
type followSender struct {
	mu     sync.Mutex
	events io.Writer
	output *bufio.Writer
}

// send sends an event. It ignores errors: if the supervisor is gone, fdLife
// ends this process.
func (s *followSender) send(event followEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = json.NewEncoder(s.events).Encode(event)
}

// step sends a step. One with a mark ends a batch of output, which the supervisor
// passes on as a whole. The caller sends one batch after the other.
func (s *followSender) step(step workload.Step) {
	if !step.FollowsOutput() {
		s.send(followEvent{Step: &step})
		return
	}
	if containerlog.WriteJSON(s.output, containerlog.KindPosition, step) == nil {
		_ = s.output.Flush() // errors are ignored, as in send
	}
}

// frameWriter writes data in frames of one kind.
type frameWriter struct {
	to   io.Writer
	kind containerlog.Kind
}

func (w frameWriter) Write(data []byte) (int, error) {
	if err := (containerlog.Frame{Kind: w.kind, Data: data}).Write(w.to); err != nil {
		return 0, err
	}
	return len(data), nil
}
