package node

import (
	"context"
	"sync/atomic"
	"time"
	_ "unsafe" // for linkname

	"k8s.io/kubernetes/pkg/kubelet"
)

const (
	readyPause = 20 * time.Millisecond
	readyMost  = 10 * time.Second
)

//go:linkname fastNodeStatusUpdate k8s.io/kubernetes/pkg/kubelet.(*Kubelet).fastNodeStatusUpdate
func fastNodeStatusUpdate(k *kubelet.Kubelet, ctx context.Context, timeout bool) bool

// reportReady reports the node ready as soon as it is, because the scheduler waits for
// that. It checks every readyPause, for readyMost at most. The kubelet itself checks only
// every 100 ms after its start. The Node must exist already.
func reportReady(ctx context.Context, running *atomic.Pointer[kubelet.Kubelet]) {
	for end := time.Now().Add(readyMost); time.Now().Before(end); {
		// running is set before the kubelet is complete. Its main loop starts only after
		// that, once the runtime has answered.
		if k := running.Load(); k != nil && !k.LatestLoopEntryTime().IsZero() && fastNodeStatusUpdate(k, ctx, false) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(readyPause):
		}
	}
}
