package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"berth.dev/berth/internal/kube/workload"
)

// askToEnd asks pods and the command to end, and waits as long as the cause
// allows.
func (r *run) askToEnd(ctx context.Context, cause error) {
	r.saver.finish()
	var request *downRequest
	if !errors.As(cause, &request) {
		r.work.end(ctx, cause, func(ctx context.Context, grace time.Duration) {
			r.moves.Store(r.nodesReturn() && r.allocation.MayStartAgain())
			ended := r.cancelPilots()
			r.drain(ctx, grace)
			awaitEnd(ctx, ended, endPilotsLimit)
			r.pilotsHadTime = true
		})
	} else {
		ctx, cancel := context.WithTimeout(ctx, request.Grace)
		defer cancel()
		r.cancelPilots()
		request.answer(r.drain(ctx, request.Grace))
	}
	if !r.moves.Load() {
		if err := r.saver.dismiss(); err != nil {
			r.Log.Warn(err.Error())
		}
	}
}

// drain asks all pods to end and waits for them. If the job of the cluster may start again, the
// pods on nodes of other jobs run on. These nodes ask Slurm, and end if the job has ended.
func (r *run) drain(ctx context.Context, grace time.Duration) workload.Drained {
	began := time.Now()
	drained, err := r.work.client.DrainExcept(ctx, grace, func(node string) bool { return r.moves.Load() && r.isOfOtherJob(node) })
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
