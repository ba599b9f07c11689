package control

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/admission"
)

// admissionPoll is the interval of readiness checks of admission plugins.
const admissionPoll = 5 * time.Millisecond

// admissionPlugins collects the plugins of kube-apiserver when they are created, so that
// the gate can wait until they are ready. Without the gate, an early write would wait in
// steps of 100 ms. The slowest plugins are the policies, which check their own caches
// every 100 ms.
type admissionPlugins struct {
	plugins []readyPlugin
}

// readyPlugin is a plugin that may not be ready yet. It has no method that checks this
// without waiting.
type readyPlugin interface{ WaitForReady() bool }

// Decorate collects the plugin, and returns it unchanged.
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
			// WaitForReady checks the plugin only every 100 ms, but the first time at
			// once. So start a new call at each tick.
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
