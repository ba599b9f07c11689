package lazy

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/freespace"
)

// The content of a layer that arrives leaves a part of the disk free.
func TestArrivingLayerLeavesSpaceFree(t *testing.T) {
	disk := corpus.SmallDisk(t)
	full, err := os.Create(filepath.Join(disk, "full"))
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := unix.Fallocate(int(full.Fd()), 0, 0, int64(corpus.Free(t, disk))-128<<20); err != nil {
		t.Fatal(err)
	}
	r, source := serve(t, corpus.Pack(t, map[string][]byte{"large": bytes.Repeat([]byte("content "), 16<<20)}), 4<<20, 0)
	path := filepath.Join(disk, "layer")
	if err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	f, _ := open(t, path)
	var problem error
	for k := range f.chunks {
		if problem = f.await(k); problem != nil {
			break
		}
	}
	// All chunks together do not fit, but the first chunks do.
	if left := corpus.Free(t, disk); !errors.Is(problem, freespace.ErrNoSpace) || left < 8<<20 || left > 64<<20 {
		t.Errorf("%d bytes are left: %v", left, problem)
	}
}

// On a disk that is nearly full, content that nobody reads is not requested, but pods can
// read what they need until the kubelet would evict them.
func TestReadersHaveMoreSpace(t *testing.T) {
	disk := corpus.SmallDisk(t)
	resize := func(size string) {
		t.Helper()
		if err := unix.Mount("small", disk, "tmpfs", unix.MS_REMOUNT, "size="+size); err != nil {
			t.Fatal(err)
		}
	}
	resize("1g") // 256 MiB are kept free
	r, source := serve(t, corpus.Pack(t, map[string][]byte{"large": corpus.Noise(1, 8<<20)}), 1<<20, 0)
	path := filepath.Join(disk, "layer")
	if err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	f, _ := open(t, path)
	begin := r.asked.Load()
	resize("128m")
	ended := make(chan error, 1)
	go func() { ended <- f.Fetch(t.Context()) }()
	pauses := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.pausing > 0
	}
	for end := time.Now().Add(20 * time.Second); !pauses(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing waits for space")
		}
	}
	if asked := r.asked.Load() - begin; asked != 0 {
		t.Errorf("%d requests in the background", asked)
	}
	if err := f.await(0); err != nil {
		t.Error(err)
	}
	begin = r.asked.Load()
	resize("32m")
	if err := f.await(len(f.chunks) - 1); !errors.Is(err, freespace.ErrNoSpace) || r.asked.Load() != begin {
		t.Errorf("%d requests on a full disk: %v", r.asked.Load()-begin, err)
	}
	resize("1g")
	if err := <-ended; err != nil || !complete(f) {
		t.Errorf("with space again: %v", err)
	}
}
