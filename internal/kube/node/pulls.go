package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/events"

	"berth.dev/berth/internal/base/cluster"
)

// firstPullReport is the time after which a pull is first reported. Each further
// report comes after twice the time, because a recorder lets only a few events
// pass.
const firstPullReport = 5 * time.Second

// pullReports is the kubelet's event recorder. It adds events about the progress of long
// image pulls, because the runtime's API for the kubelet has none.
type pullReports struct {
	record.EventRecorderLogger
	ctx context.Context
	// received returns the number of received bytes of the node's current downloads, and
	// their total size in bytes.
	received func() (of, all int64)

	mu sync.Mutex
	// running holds the functions that end reports, by waiting container.
	running map[v1.ObjectReference]context.CancelFunc
}

func newPullReports(ctx context.Context, recorder record.EventRecorderLogger, received func() (of, all int64)) *pullReports {
	return &pullReports{EventRecorderLogger: recorder, ctx: ctx, received: received, running: map[v1.ObjectReference]context.CancelFunc{}}
}

// Event implements record.EventRecorder. The kubelet reports the start and the result of
// each pull by events.
func (p *pullReports) Event(object runtime.Object, kind, reason, message string) {
	p.EventRecorderLogger.Event(object, kind, reason, message)
	container, ok := object.(*v1.ObjectReference)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if end := p.running[*container]; end != nil {
		end()
		delete(p.running, *container)
	}
	if reason == events.PullingImage {
		ctx, end := context.WithCancel(p.ctx)
		p.running[*container] = end
		go p.report(ctx, container, message)
	}
}

// WithLogger implements record.EventRecorderLogger.
func (p *pullReports) WithLogger(klog.Logger) record.EventRecorderLogger { return p }

// report reports a pull until ctx ends.
func (p *pullReports) report(ctx context.Context, container *v1.ObjectReference, pulling string) {
	began := time.Now()
	for next := firstPullReport; ; next *= 2 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
		p.EventRecorderLogger.Event(container, v1.EventTypeNormal, cluster.PullProgress,
			fmt.Sprintf("%s for %.0f s: %s", pulling, time.Since(began).Seconds(), describeReceived(p.received())))
	}
}

func describeReceived(of, all int64) string {
	if all == 0 {
		return "the registry has yet to answer, or what has come is being unpacked"
	}
	return fmt.Sprintf("%.1f of %.1f MB of the layers that this node is receiving have come", float64(of)/1e6, float64(all)/1e6)
}
