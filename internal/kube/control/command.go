package control

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/notify"
)

// Main parses args and runs the role until ctx ends, and then returns nil. args are:
//
//	--plan FILE          the plan, as JSON
//	--notify-fd N        the descriptor for reports; see package notify
//	--listener-fd N      a listening TCP socket; may be repeated
//	--state-fd N         a listening socket that serves the objects to save
func Main(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("control", flag.ContinueOnError)
	planFile := flags.String("plan", "", "`file` with the plan of the cluster")
	notifyFD := flags.Int("notify-fd", -1, "descriptor to report to")
	var listenerFDs []int
	flags.Func("listener-fd", "`descriptor` of a listening TCP socket; may be repeated", func(s string) error {
		fd, err := strconv.Atoi(s)
		listenerFDs = append(listenerFDs, fd)
		return err
	})
	stateFD := flags.Int("state-fd", -1, "listening `descriptor` that serves the objects to save")
	if err := flags.Parse(args); err != nil {
		return err
	}
	notifier := notify.New(*notifyFD)
	err := start(ctx, *planFile, listenerFDs, *stateFD, notifier)
	if err != nil {
		notifier.Fatal(err)
	}
	return err
}

func start(ctx context.Context, planFile string, listenerFDs []int, stateFD int, notifier *notify.Notifier) error {
	plan, err := readPlan(planFile)
	if err != nil {
		return err
	}
	listeners, err := inherit(listenerFDs)
	if err != nil {
		return err
	}
	var state net.Listener
	if stateFD >= 0 {
		inherited, err := inherit([]int{stateFD})
		if err != nil {
			return err
		}
		state = inherited[0]
	}
	return run(ctx, plan, Options{
		Listeners: listeners,
		State:     state,
		Notifier:  notifier,
		Log:       slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}

func readPlan(path string) (plan cluster.Plan, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return plan, fmt.Errorf("read plan: %w", err)
	}
	if err := json.Unmarshal(text, &plan); err != nil {
		return plan, fmt.Errorf("decode plan %s: %w", path, err)
	}
	return plan, nil
}

// inherit takes over listening sockets. net.FileListener makes its own descriptor,
// which children do not inherit; the original one is closed.
func inherit(fds []int) ([]net.Listener, error) {
	var listeners []net.Listener
	for _, fd := range fds {
		file := os.NewFile(uintptr(fd), "listener")
		if file == nil {
			return nil, fmt.Errorf("inherit listener (fd %d): %w", fd, os.ErrInvalid)
		}
		listener, err := net.FileListener(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("inherit listener (fd %d): %w", fd, err)
		}
		listeners = append(listeners, listener)
	}
	return listeners, nil
}
