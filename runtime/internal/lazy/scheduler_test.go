package lazy

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
)

// turn holds the results of Scheduler.background.
type turn struct {
	size int64
	end  func()
	err  error
}

func (l *Scheduler) turn(ctx context.Context) <-chan turn {
	return l.turnOr(ctx, func() bool { return false })
}

func (l *Scheduler) turnOr(ctx context.Context, urgent func() bool) <-chan turn {
	got := make(chan turn, 1)
	go func() {
		size, end, err := l.background(ctx, urgent)
		got <- turn{size, end, err}
	}()
	return got
}

func came(got <-chan turn) (turn, bool) {
	synctest.Wait()
	select {
	case t := <-got:
		return t, true
	default:
		return turn{}, false
	}
}

func TestReadersHavePriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Scheduler
		first, ok := came(l.turn(t.Context()))
		if !ok || first.size != part {
			t.Fatalf("a scheduler that nobody needs: %v, %d bytes", ok, first.size)
		}
		first.end()

		one, other := l.foreground(), l.foreground()
		waiting := l.turn(t.Context())
		one()
		if _, ok := came(waiting); ok {
			t.Error("a request in the background while somebody waits")
		}
		other()
		small, ok := came(waiting)
		if !ok || small.size != partThen {
			t.Errorf("after it: %v, %d bytes", ok, small.size)
		}
		for n := 1; n < atOnceOfAll; n++ {
			if _, ok := came(l.turn(t.Context())); !ok {
				t.Errorf("%d at a time, and no more", n)
			}
		}
		next := l.turn(t.Context())
		if _, ok := came(next); ok {
			t.Errorf("more than %d at a time", atOnceOfAll)
		}
		small.end()
		if _, ok := came(next); !ok {
			t.Error("an end lets none in")
		}
		small.end()
		time.Sleep(2 * lately)
		if again, ok := came(l.turn(t.Context())); !ok || again.size != part {
			t.Errorf("a while later: %v, %d bytes", ok, again.size)
		}
	})
}

func TestSilentRegistryDelaysOthersBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Scheduler
		defer l.foreground()()
		waiting := l.turn(t.Context())
		if _, ok := came(waiting); ok {
			t.Error("it holds up nobody")
		}
		time.Sleep(backgroundTimeout)
		if got, ok := came(waiting); !ok || got.err != nil {
			t.Errorf("it holds up others for longer: %v, %v", ok, got.err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := l.turn(ctx)
		cancel()
		if got, ok := came(ended); !ok || !errors.Is(got.err, context.Canceled) {
			t.Errorf("ended while it waits: %v, %v", ok, got.err)
		}
	})
}

// A reader may begin to wait for content that is already coming in the background.
func TestRequestedContentDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Scheduler
		defer l.foreground()()
		var wanted atomic.Bool
		waiting := l.turnOr(t.Context(), wanted.Load)
		if _, ok := came(waiting); ok {
			t.Error("it does not wait")
		}
		wanted.Store(true)
		l.wakeBackground()
		if _, ok := came(waiting); !ok {
			t.Error("it waits, and somebody for it")
		}
	})
}

// A chunk may be larger than one request.
func TestBackgroundAsksForParts(t *testing.T) {
	want := corpus.Noise(1, 3<<20)
	r, source := serve(t, corpus.Pack(t, map[string][]byte{"file": want}), 4<<20, 0)
	path := filepath.Join(t.TempDir(), "layer")
	if err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	f, image := open(t, path)
	if len(f.chunks) != 1 {
		t.Fatalf("%d chunks", len(f.chunks))
	}
	var mu sync.Mutex
	requests := 0
	r.onRequest(func(http.ResponseWriter, *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		requests++
		return false
	})
	if err := f.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if requests < 3 || requests > 4 {
		t.Errorf("%d requests for 3 MiB", requests)
	}
	if content, err := read(image, "file"); err != nil || !bytes.Equal(content, want) {
		t.Errorf("%d bytes, %v", len(content), err)
	}
}
