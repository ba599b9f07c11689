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

// reportReady checks whether the node became ready and reports it, because the
// scheduler waits for that. The kubelet itself does so every 100 ms after its
// start. The Node must exist already.
func reportReady(ctx context.Context, running *atomic.Pointer[kubelet.Kubelet]) {
	for end := time.Now().Add(readyMost); time.Now().Before(end); {
		// The kubelet is there before it is complete; its main loop turns
		// only afterwards, once the runtime answered.
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
