package lazy

import "sync"

// PriorityGate makes content that images prioritize arrive first, across all layers in
// transfer.
type PriorityGate struct {
	mu sync.Mutex
	// first holds layers that still lack prioritized content.
	first map[*File]bool
	// changed is closed at the next change; nil while nobody waits for it.
	changed chan struct{}
}

// enter records that a layer has prioritized content to fetch.
func (o *PriorityGate) enter(f *File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.first == nil {
		o.first = map[*File]bool{}
	}
	o.first[f] = true
}

// leave lets other layers continue. It can be called twice.
func (o *PriorityGate) leave(f *File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.first[f] {
		return
	}
	delete(o.first, f)
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
}

// wait reports whether a layer without prioritized content has to wait.
func (o *PriorityGate) wait(f *File) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.first) > 1 || len(o.first) == 1 && !o.first[f]
}

// change returns a channel that is closed at the next change.
func (o *PriorityGate) change() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return o.changed
}
