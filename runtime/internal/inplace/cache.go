package inplace

import (
	"slices"
	"sync"
)

const (
	// maxCached bounds the bytes of unpacked blocks in memory. The kernel caches content
	// that it has read. This cache is for many small files that share one block.
	maxCached = 8 << 20
	// minBlock is the least size in bytes that counts for a block, because its
	// bookkeeping takes memory, too.
	minBlock = 4 << 10
)

// cache holds the most recently used blocks by place. Concurrent requests for a
// block unpack it only once.
type cache struct {
	mu     sync.Mutex
	blocks map[place]*block
	size   int
	// turn counts uses.
	turn int64
}

// place is the offset of a block in the SIF file, with its size and packing.
type place struct {
	offset int64
	packed uint32
}

type block struct {
	ready chan struct{}
	data  []byte
	err   error
	used  int64
}

// size returns the memory that the block takes.
func (b *block) size() int { return max(cap(b.data), minBlock) }

// get returns the block at a place, and calls load if it is not in the cache. It does not keep
// a block that failed to load.
func (c *cache) get(at place, load func() ([]byte, error)) ([]byte, error) {
	c.mu.Lock()
	c.turn++
	b := c.blocks[at]
	if b != nil {
		b.used = c.turn
		c.mu.Unlock()
		<-b.ready
		return b.data, b.err
	}
	b = &block{ready: make(chan struct{}), used: c.turn, err: errDamaged}
	if c.blocks == nil {
		c.blocks = map[place]*block{}
	}
	c.blocks[at] = b
	c.mu.Unlock()
	defer close(b.ready)
	data, err := load()
	if cap(data)-len(data) > len(data)/8 {
		data = slices.Clone(data) // the buffer has the size of the largest block
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b.data, b.err = data, err
	if b.err != nil {
		delete(c.blocks, at) // the next request tries again
		return nil, b.err
	}
	c.size += b.size()
	for c.size > maxCached && c.forget(at) {
	}
	return b.data, nil
}

// forget drops the least recently used block, and reports whether there was one. It keeps
// blocks that are being loaded, and the block at a given place.
func (c *cache) forget(but place) bool {
	var oldest *block
	var where place
	for at, b := range c.blocks {
		if at != but && b.data != nil && (oldest == nil || b.used < oldest.used) {
			oldest, where = b, at
		}
	}
	if oldest == nil {
		return false
	}
	delete(c.blocks, where)
	c.size -= oldest.size()
	return true
}
