// Package share divides a number of places among pods, so that one pod cannot take
// all of them. It does not know what a place is, and has no queue.
package share

import (
	"net/netip"
	"sync"
)

// factor bounds the places of one pod to a multiple of the places that remain free
// for all. A single pod gets 3/4 of them, two pods get 3/7 each. A pod that comes
// later always finds some that are free. See Choudhury and Hahne, "Dynamic queue
// length thresholds for shared-memory packet switches" (1998).
const factor = 3

// Places counts the places that each pod has taken. Its methods may be called
// concurrently.
type Places struct {
	mu    sync.Mutex
	limit int
	of    map[netip.Addr]int
	taken int
}

// New returns Places with limit places for all pods together.
func New(limit int) *Places {
	return &Places{limit: limit, of: make(map[netip.Addr]int)}
}

// Take takes a place for a pod, and reports whether it did. It refuses if the pod has used
// up its share. The caller must call Give to free the place.
func (p *Places) Take(pod netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full(pod) {
		return false
	}
	p.of[pod]++
	p.taken++
	return true
}

// Full reports whether Take would refuse a place now.
func (p *Places) Full(pod netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.full(pod)
}

func (p *Places) full(pod netip.Addr) bool { return p.of[pod] >= factor*(p.limit-p.taken) }

// Add takes a place for a pod, even above its share.
func (p *Places) Add(pod netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[pod]++
	p.taken++
}

// Give frees a place of a pod.
func (p *Places) Give(pod netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.of[pod]--; p.of[pod] == 0 {
		delete(p.of, pod)
	}
}

// Taken returns the number of places that pods have.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// Most returns the pod with the most places. The address is invalid if no pod has any.
func (p *Places) Most() netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	var most netip.Addr
	for pod, places := range p.of {
		if places > p.of[most] || places == p.of[most] && pod.Less(most) {
			most = pod
		}
	}
	return most
}
