package interlink

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// removedTTL is the time after which deletions are forgotten. No /create takes as long.
const removedTTL = 10 * time.Minute

// removed holds the UIDs of the foreign pods that the virtual node has deleted. A deletion
// that overlaps the creation of the local pod may find no pod.
type removed struct {
	mu sync.Mutex
	at map[types.UID]time.Time // times of the deletions
}

// add records a deletion. Call it before the search for the local pod.
func (r *removed) add(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(r.at, func(_ types.UID, at time.Time) bool { return now.Sub(at) > removedTTL })
	if r.at == nil {
		r.at = map[types.UID]time.Time{}
	}
	r.at[uid] = now
}

// has reports whether a deletion was recorded.
func (r *removed) has(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.at[uid]
	return ok
}
