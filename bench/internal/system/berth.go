package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// berth starts a cluster for each task, in one step, and runs the task as a pod.
type berth struct {
	place   Place
	options []string
	// hostNetwork puts the pods into the network of the cluster's nodes, fast gives
	// them the fast path.
	hostNetwork, fast bool
}

func (b *berth) Check(ctx context.Context) (map[string]string, error) {
	version, err := b.place.Ask(ctx, b.place.Berth, "version")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(b.place.Archive); err != nil {
		return nil, fmt.Errorf("the image of the programs: %w", err)
	}
	versions := map[string]string{}
	for line := range strings.Lines(version) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			versions[name] = value
		}
	}
	return versions, nil
}

func (b *berth) Prepare(context.Context) error { return nil }

func (b *berth) Close(context.Context) error { return nil }

func (b *berth) Run(ctx context.Context, task Task) (Output, error) {
	hosts := b.place.host(0)
	if task.Server != nil && task.Server.At != OnHost {
		hosts = b.place.Hosts
		if len(hosts) < 2 {
			return Output{}, &Unsupported{"pods on two nodes need a job of two hosts"}
		}
	}
	return b.place.withServer(ctx, task, func(args []string) (Output, error) {
		return b.place.withFolder(ctx, task.Folder == Scratch, func(folder string) (Output, error) {
			options := append([]string{"run", "--quiet", "--image", b.place.Archive, "-f", "-"}, b.options...)
			fast := "off"
			if b.fast {
				fast = "auto"
			}
			options = append(options, "--fast-path", fast)
			if folder != "" {
				options = append(options, "--mount", folder+":"+inContainer)
			}
			task.Args = args
			text, err := manifest(task, objects{
				image: b.place.Image, hostNetwork: b.hostNetwork, mounted: folder != "", counted: b.fast && task.Server != nil,
			})
			if err != nil {
				return Output{}, err
			}
			out, err := b.place.Run(ctx, b.place.measured(hosts, "", append([]string{b.place.Berth}, options...)), text)
			var wrong error
			out.Stdout, out.Values, wrong = share(ofMain(out.Stdout))
			return out, errors.Join(err, wrong)
		})
	})
}

// mainPrefix is how berth marks the task's lines where several containers speak.
const mainPrefix = "[bench main] "

// ofMain is what the task itself printed.
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
