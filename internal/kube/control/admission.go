package control

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/admission"
)

// admissionPoll is the interval of readiness checks of admission plugins.
const admissionPoll = 5 * time.Millisecond

// admissionPlugins collects the plugins of kube-apiserver as they are made, to
// know when they are ready. A write that comes too early is not refused, but
// looks again only after 100 ms, so it is better held back by the gate. What
// takes long is the policies, which look for their own caches every 100 ms,
// from a moment that has nothing to do with when those are filled.
type admissionPlugins struct {
	plugins []readyPlugin
}

// readyPlugin is a plugin that may have to wait. The only way to ask it is to
// let it wait.
type readyPlugin interface{ WaitForReady() bool }

// Decorate collects the plugin and leaves it as it is.
func (a *admissionPlugins) Decorate(plugin admission.Interface, _ string) admission.Interface {
	if p, ok := plugin.(readyPlugin); ok {
		a.plugins = append(a.plugins, p)
	}
	return plugin
}

// wait returns true when all plugins are ready, and false when ctx ends.
func (a *admissionPlugins) wait(ctx context.Context) bool {
	tick := time.NewTicker(admissionPoll)
	defer tick.Stop()
	for _, p := range a.plugins {
		ready := make(chan struct{}, 1)
		for asking := true; asking; {
			// A question that is not answered at once sleeps for 100 ms and
			// then asks again, so a fresh one is put beside it.
			go func() {
				if p.WaitForReady() {
					select {
					case ready <- struct{}{}:
					default:
					}
				}
			}()
			select {
			case <-ready:
				asking = false
			case <-tick.C:
			case <-ctx.Done():
				return false
			}
		}
	}
	return true
}
