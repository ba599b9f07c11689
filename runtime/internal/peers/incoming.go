package peers

import (
	"context"
	"errors"
	"sync"
)

// incoming is a blob that this node is receiving, from a node or a registry.
type incoming struct {
	// path is the file that receives the blob; size is the blob's final size in bytes.
	path string
	size int64

	mu       sync.Mutex
	received int64
	now      state
	// changed is closed at the next change; nil while nobody waits.
	changed chan struct{}
}

type state int

const (
	coming state = iota
	whole
	broken
)

// errBroken reports that the rest will not arrive.
var errBroken = errors.New("the node that was receiving it has stopped")

func (i *incoming) advance(n int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.received += n
	i.wake()
}

// end sets the final state. Further calls do nothing.
func (i *incoming) end(as state) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.now == coming {
		i.now = as
		i.wake()
	}
}

// wake wakes all calls of await. The caller holds mu.
func (i *incoming) wake() {
	if i.changed != nil {
		close(i.changed)
		i.changed = nil
	}
}

// await waits until more than offset bytes have arrived, and returns the number that has. It
// returns errBroken if no more bytes will arrive.
func (i *incoming) await(ctx context.Context, offset int64) (int64, error) {
	for {
		i.mu.Lock()
		received, now := i.received, i.now
		if i.changed == nil {
			i.changed = make(chan struct{})
		}
		changed := i.changed
		i.mu.Unlock()
		switch {
		case received > offset:
			return received, nil
		case now != coming:
			return 0, errBroken
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}
