package lazy

import "sync"

// Order has what images name as to come first come first, of all layers that are
// coming at once.
type Order struct {
	mu sync.Mutex
	// first holds layers that still lack prioritized content.
	first map[*File]bool
	// changed is closed at each change.
	changed chan struct{}
}

// enter notes that something of a layer is to come first.
func (o *Order) enter(f *File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.first == nil {
		o.first = map[*File]bool{}
	}
	o.first[f] = true
}

// leave lets others go on. It can be called twice.
func (o *Order) leave(f *File) {
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
func (o *Order) wait(f *File) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.first) > 1 || len(o.first) == 1 && !o.first[f]
}

// change is closed at the next change.
func (o *Order) change() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return o.changed
}
