package sequence

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/bench/internal/deliver"
	"berth.dev/berth/bench/internal/record"
)

// firstHost is the name of the figure for the CPU time of the first host until all nodes
// are ready.
const firstHost = "first host's CPU time to there"

// UsageBefore is the variable with deliver.Usage from before the start of the
// cluster, so that only later usage of the user's shells and daemons counts.
const UsageBefore = "BERTH_BENCH_USAGE_BEFORE"

// nodes waits until all nodes of the cluster accept pods. It returns the time when they do,
// and the CPU time that the user's processes on this host have used by then, including the
// start of the cluster.
func nodes(ctx context.Context, s Spec) (Result, error) {
	before, err := strconv.ParseFloat(os.Getenv(UsageBefore), 64)
	if err != nil {
		return Result{}, fmt.Errorf("read the CPU time of the user's processes before the cluster: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Watch instead of polling, because queries use CPU time of this host.
	argv := append(slices.Clone(s.Kubectl), "get", "nodes", "--watch", "--no-headers", "-o",
		`custom-columns=N:.metadata.name,R:.status.conditions[?(@.type=="Ready")].status,T:.spec.taints[*].effect`)
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 10 * time.Second
	var said strings.Builder
	command.Stderr = &said
	out, err := command.StdoutPipe()
	if err != nil {
		return Result{}, err
	}
	if err := command.Start(); err != nil {
		return Result{}, fmt.Errorf("watch the nodes: %w", err)
	}
	err = awaitNodes(out, s.Nodes)
	at := time.Now()
	spent, wrong := deliver.Usage()
	cancel()
	_ = command.Wait() // killed above, so its error is no news
	if err != nil {
		return Result{}, fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return Result{At: at.UnixNano(), Values: []record.Value{{Name: firstHost, Unit: "s", Better: "lower", Value: spent - before}}}, wrong
}

// awaitNodes reads lines with the readiness and taints of nodes, until the wanted number of
// nodes accepts pods. It returns an error if the lines end before.
func awaitNodes(from io.Reader, wanted int) error {
	takes := map[string]bool{}
	for lines := bufio.NewScanner(from); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 {
			continue
		}
		takes[fields[0]] = fields[1] == "True" && !strings.Contains(fields[2], "No")
		n := 0
		for _, is := range takes {
			if is {
				n++
			}
		}
		if n >= wanted {
			return nil
		}
	}
	return errors.New("not all nodes of the cluster became ready")
}
