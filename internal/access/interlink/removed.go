package interlink

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// removedLife bounds the memory of deletions. No /create takes as long.
const removedLife = 10 * time.Minute

// removed holds the UIDs of the pods that the virtual node has deleted. A deletion may
// overlap the pod's creation, and finds no pod then.
type removed struct {
	mu sync.Mutex
	at map[types.UID]time.Time
}

// add records a deletion. It precedes the search for the pod.
func (r *removed) add(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(r.at, func(_ types.UID, at time.Time) bool { return now.Sub(at) > removedLife })
	if r.at == nil {
		r.at = map[types.UID]time.Time{}
	}
	r.at[uid] = now
}

func (r *removed) has(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.at[uid]
	return ok
}
