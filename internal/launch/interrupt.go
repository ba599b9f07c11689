package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/command"
)

// ending holds the state that a run needs to end in order.
type ending struct {
	allocation *allocation.Allocation
	// asked is set when a signal has come and the workload was asked to end.
	asked atomic.Bool
	// lostLease is set when another node may lead the run.
	lostLease atomic.Bool
	mu        sync.Mutex
	command   *command.Parent
}

func (e *ending) setCommand(k *command.Parent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.command = k
}

func (e *ending) getCommand() *command.Parent {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.command
}

// askToEnd asks pods and the command to end, and waits as long as the cause
// allows.
func (r *run) askToEnd(ctx context.Context, cause error) {
	r.finishState()
	var reason *allocation.Interrupted
	var told *toldToEnd
	var over *allocation.TimeUp
	switch {
	case errors.As(cause, &reason):
		r.asked.Store(true)
		allocation.InGrace(ctx, r.Log, reason.Notice(), r.allocation.GraceNow(ctx, reason.Signal), r.endWorkload)
	case errors.As(cause, &over):
		r.asked.Store(true)
		allocation.InGrace(ctx, r.Log, over.Error(), over.Grace, r.endWorkload)
	case errors.As(cause, &told):
		ctx, cancel := context.WithTimeout(ctx, told.order.Grace)
		defer cancel()
		told.answer(r.drain(ctx, told.order.Grace))
	}
}

func (r *run) endWorkload(ctx context.Context, grace time.Duration) {
	var both sync.WaitGroup
	if kept := r.getCommand(); kept != nil {
		kept.End(grace)
		both.Go(func() {
			select {
			case <-kept.Ended():
			case <-ctx.Done():
			}
		})
	}
	both.Go(func() { r.drain(ctx, grace) })
	both.Wait()
}

// drain asks all pods to end and waits for them.
func (r *run) drain(ctx context.Context, grace time.Duration) workload.Drained {
	began := time.Now()
	drained, err := r.client.Drain(ctx, grace)
	switch left := drained.Asked - drained.Ended; {
	case err != nil && ctx.Err() == nil:
		r.Log.Warn("pods cannot be asked to end: " + err.Error())
	case left > 0 && r.allocation != nil && r.allocation.Early == 0:
		r.Log.Warn(fmt.Sprintf("%d of %d pods had not ended after %s, and are killed; --grace 2m ends the workload two minutes before the job's time is over", left, drained.Asked, time.Since(began).Round(time.Second)))
	}
	return drained
}

// outlivePipes keeps this process alive when it writes to a pipe that nobody
// reads any more (berth run | head), so that it takes the cluster down in order.
// It catches the signal, because the command would inherit an ignored one.
func outlivePipes() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// output passes on the output of the workload. When nobody reads it any more, the
// run ends, as other programs do.
type output struct {
	to     io.Writer
	giveUp context.CancelCauseFunc
}

func (o *output) Write(data []byte) (int, error) {
	n, err := o.to.Write(data)
	switch {
	case errors.Is(err, syscall.EPIPE):
		o.giveUp(&exitcode.Error{Code: exitcode.Signal + int(syscall.SIGPIPE), Err: errors.New("nobody reads the output any more")})
	case err != nil:
		o.giveUp(&exitcode.Error{Code: exitcode.Output, Err: fmt.Errorf("pass on the workload's output: %w", err)})
	}
	return n, err
}
