package sequence

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/bench/internal/record"
)

// endLimit bounds the time that a program may take to end after a request. It is
// shorter than the bench's limit for this process, so that this process is not killed
// first.
const endLimit = 15 * time.Second

// program runs any other program. The program prints a figure as JSON in each line,
// {"name": ..., "unit": ..., "value": ...}. All other output is for people.
func program(ctx context.Context, s Spec) (Result, error) {
	command := exec.CommandContext(ctx, "sh", "-c", s.Parameters["command"])
	command.Env = append(os.Environ(), "NODES="+s.Parameters["nodes"])
	command.Stderr = os.Stderr
	// All processes that it has started end with it.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGTERM) }
	command.WaitDelay = endLimit
	out, err := command.Output()
	if ctx.Err() != nil && command.Process != nil {
		// Kill processes that did not end on request, or that a shell has left.
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	}
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", s.Parameters["command"], err)
	}
	return readFigures(string(out))
}

// readFigures parses the figures: the lines that begin with "{". It returns an error if a
// name is missing or repeated, or if there are no figures.
func readFigures(text string) (r Result, err error) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var v record.Value
		decoder := json.NewDecoder(bytes.NewReader([]byte(line)))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&v); err != nil {
			return r, fmt.Errorf("read the figure %s: %w", strings.TrimSpace(line), err)
		}
		if v.Name == "" || slices.ContainsFunc(r.Values, func(have record.Value) bool { return have.Name == v.Name }) {
			return r, fmt.Errorf("the figure %s has no name, or the name of an earlier figure", strings.TrimSpace(line))
		}
		r.Values = append(r.Values, v)
	}
	if r.Values == nil {
		return r, errors.New("the program printed no figures")
	}
	return r, nil
}
