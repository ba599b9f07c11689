package lazy

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/freespace"
)

// File is the file of a layer whose content is fetched when it is read, and in the
// background. It is safe for concurrent use. After a restart of this process,
// fetched content is still there.
type File struct {
	// file holds the layer's image. have records the state of each chunk.
	file, have *os.File
	remote     *remote
	// space keeps a part of the file system free when nobody reads the content, and urgent
	// a smaller part when a reader waits.
	space, urgent *freespace.Guard
	chunks        []chunk
	// first is the blob offset where the prioritized content ends.
	first     int64
	priority  *PriorityGate
	scheduler *Scheduler
	// wanted counts the readers that wait for chunks in transfer.
	wanted atomic.Int32
	log    func(string)

	mu sync.Mutex
	// changed is signalled when content has arrived or failed.
	changed *sync.Cond
	state   []byte
	// asking counts the requests in flight for waiting readers. pausing counts the
	// pauses before failed requests are repeated. While either is positive, no
	// background request starts. inBackground counts the background requests in flight.
	asking, pausing, inBackground int
}

// The states of a chunk. Only away and here are recorded, in the file beside the
// layer.
const (
	away = iota
	here
	coming
	// wrong marks a chunk that arrived with another digest than the table of contents
	// states.
	wrong
)

var errWrong = errors.New("wrong content")

const (
	// ahead is the size of a request for a waiting reader, in compressed bytes. It
	// exceeds most chunks, because the following bytes of the blob are often read next.
	// aheadInBackground is larger, but not so large that a reader would share a slow
	// connection with a background request for long.
	ahead, aheadInBackground = 512 << 10, 1 << 20
	// atOnce is the number of background requests in flight. With one, the
	// connection would idle until the next one is answered.
	atOnce = 2
	// tries bounds the requests for a chunk that a reader waits for. The pause before
	// the second request is firstPause, and doubles each time.
	tries      = 6
	firstPause = 500 * time.Millisecond
	// longestPause bounds the pause between repeated background requests, which
	// never give up.
	longestPause = time.Minute
)

// Is reports whether the file of a layer is lazy.
func Is(path string) bool {
	_, err := os.Stat(path + indexExtension)
	return err == nil
}

// Options configures opening a layer.
type Options struct {
	// Refused lists address ranges that must not be contacted for content.
	Refused []netip.Prefix
	// Login returns the login with a name, and reports whether it is known.
	Login func(name string) (Login, bool)
	// PriorityGate is shared by all layers.
	PriorityGate *PriorityGate
	// Scheduler coordinates the downloads of all layers.
	Scheduler *Scheduler
	// Log receives descriptions of failed downloads and wrong content.
	Log func(string)
}

// Open opens the file of a layer that Make has made.
func Open(path string, o Options) (f *File, err error) {
	f = &File{log: o.Log, priority: o.PriorityGate, scheduler: o.Scheduler}
	f.changed = sync.NewCond(&f.mu)
	defer func() {
		if err != nil {
			err = fmt.Errorf("open lazy layer: %w", errors.Join(err, f.Close()))
		}
	}()
	text, err := os.ReadFile(path + indexExtension)
	if err != nil {
		return f, err
	}
	var known index
	if err := json.Unmarshal(text, &known); err != nil {
		return f, err
	}
	if err := known.validate(); err != nil {
		return f, err
	}
	f.chunks, f.first = known.Chunks, known.First
	f.remote = newRemote(known.Source, o.Refused, func() (Login, error) {
		login, ok := o.Login(known.Source.Login)
		if known.Source.Login != "" && !ok {
			return login, errForgotten
		}
		return login, nil
	})
	if f.state, err = os.ReadFile(path + haveExtension); err != nil {
		return f, err
	}
	if len(f.state) != len(f.chunks) {
		return f, fmt.Errorf("it has %d chunks, and the states of %d", len(f.chunks), len(f.state))
	}
	if f.have, err = os.OpenFile(path+haveExtension, os.O_WRONLY, 0); err != nil {
		return f, err
	}
	if f.space, err = freespace.Watch(filepath.Dir(path)); err != nil {
		return f, err
	}
	f.urgent = f.space.Urgent()
	f.file, err = os.OpenFile(path, os.O_RDWR, 0)
	return f, err
}

// Close closes the files. Reads fail from then on.
func (f *File) Close() error {
	f.priority.leave(f)
	var problems []error
	for _, file := range []*os.File{f.file, f.have} {
		if file != nil {
			problems = append(problems, file.Close())
		}
	}
	return errors.Join(problems...)
}

// Image returns the image of the layer.
func (f *File) Image() (*erofs.Image, error) {
	info, err := f.file.Stat()
	if err != nil {
		return nil, err
	}
	return erofs.OpenChanging(f, info.Size())
}

// ReadAt reads content, and waits for missing chunks. It fails if a chunk does not arrive.
func (f *File) ReadAt(into []byte, at int64) (int, error) {
	end := at + int64(len(into))
	first := sort.Search(len(f.chunks), func(i int) bool { return f.chunks[i].At+f.chunks[i].Size > at })
	for i := first; i < len(f.chunks) && f.chunks[i].At < end; i++ {
		if err := f.await(i); err != nil {
			return 0, err
		}
	}
	return f.file.ReadAt(into, at)
}

// await returns when a chunk is here, or the error of the last try to fetch it.
func (f *File) await(i int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state[i] == here {
		return nil
	}
	pause := firstPause
	for try := 1; f.state[i] != here; {
		if f.state[i] == coming {
			f.wanted.Add(1)
			f.scheduler.wakeBackground()
			f.changed.Wait()
			f.wanted.Add(-1)
			continue
		}
		err := f.fetch(context.Background(), i, ahead, &f.asking)
		if errors.Is(err, freespace.ErrNoSpace) {
			err = f.fetch(context.Background(), i, 0, &f.asking) // only this may fit
		}
		if err == nil || f.state[i] == here {
			continue
		}
		if try++; try > tries || errors.Is(err, errRefused) || errors.Is(err, freespace.ErrNoSpace) {
			f.log(err.Error())
			return err
		}
		f.pausing++
		f.mu.Unlock()
		time.Sleep(pause)
		f.mu.Lock()
		f.pausing--
		f.changed.Broadcast()
		pause *= 2
	}
	return nil
}

// Fetch fetches missing content in the background. It returns nil when the layer is
// complete, and an error if the registry refuses, the file is closed or ctx ends.
func (f *File) Fetch(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.enter()
	defer f.priority.leave(f)
	go f.follow(ctx, f.priority.change())
	stop := context.AfterFunc(ctx, func() {
		// Without the lock a goroutine between its check of ctx and its wait would miss this.
		f.mu.Lock()
		defer f.mu.Unlock()
		f.changed.Broadcast()
	})
	defer stop()
	const turns = atOnce + 1 // one unpacks while the others wait for answers
	ended := make(chan error, turns)
	for range turns {
		go func() {
			err := f.background(ctx)
			if err != nil {
				cancel(err)
			}
			ended <- err
		}()
	}
	var first error
	for range turns {
		if err := <-ended; first == nil {
			first = err // the first error cancels the others
		}
	}
	return first
}

// enter makes other layers wait if this layer lacks prioritized content.
func (f *File) enter() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, state := range f.state {
		if state == away && f.chunks[i].Offset < f.first {
			f.priority.enter(f)
			return
		}
	}
}

// follow wakes background fetches that wait for other layers, until ctx ends.
func (f *File) follow(ctx context.Context, change <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-change:
		}
		change = f.priority.change() // before they look, so that they miss none
		f.mu.Lock()
		f.changed.Broadcast()
		f.mu.Unlock()
	}
}

// background fetches content whenever no reader waits, until all of it is here.
func (f *File) background(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	wait := func(pause time.Duration) {
		f.pausing++
		f.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		f.mu.Lock()
		f.pausing--
		f.changed.Broadcast()
	}
	pause := firstPause
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		next, others, bad := f.next()
		if next < 0 && !others && len(bad) == 0 {
			return nil
		}
		if next < 0 && !others {
			wait(longestPause)
			for _, i := range bad {
				if f.state[i] == wrong {
					f.state[i] = away
				}
			}
			continue
		}
		if next < 0 || f.chunks[next].Offset >= f.first {
			f.priority.leave(f)
		}
		if next < 0 || f.asking > 0 || f.pausing > 0 || f.inBackground == atOnce || f.priority.wait(f) && f.chunks[next].Offset >= f.first {
			f.changed.Wait()
			continue
		}
		err := f.fetch(ctx, next, aheadInBackground, &f.inBackground)
		if err != nil {
			f.priority.leave(f) // others may have another registry
		}
		switch {
		case err == nil:
			pause = firstPause
			continue
		case errors.Is(err, errRefused) || errors.Is(err, os.ErrClosed):
			return err // a reader that needs the content asks again
		case errors.Is(err, errWrong):
			f.log(err.Error())
			continue // other chunks may be right
		case pause < longestPause && 2*pause >= longestPause:
			f.log("the rest of a layer is fetched later: " + err.Error())
		}
		wait(pause)
		pause = min(2*pause, longestPause)
	}
}

// next returns the first chunk to fetch, prioritized chunks first; -1 for none.
// It also reports whether other chunks are in transfer, and returns the wrong ones.
func (f *File) next() (next int, others bool, bad []int) {
	next = -1
	for i, state := range f.state {
		switch state {
		case away:
			if next < 0 || f.chunks[next].Offset >= f.first && f.chunks[i].Offset < f.first {
				next = i
			}
		case coming:
			others = true
		case wrong:
			bad = append(bad, i)
		}
	}
	return next, others, bad
}

// fetch fetches a chunk that is away, together with the rest of its stream and with
// the chunks after it, up to limit compressed bytes. It counts the request in asked.
// The caller holds the lock; fetch releases it during the request.
func (f *File) fetch(ctx context.Context, first int, limit int64, asked *int) error {
	// Fetch a whole stream, so that its other files do not need it a second time.
	for first > 0 && f.state[first-1] == away && f.chunks[first-1].Offset == f.chunks[first].Offset {
		first--
	}
	from, to, last := f.chunks[first].Offset, f.chunks[first].End, first+1
	for ; last < len(f.chunks); last++ {
		next := f.chunks[last]
		if f.state[last] != away || next.Offset < from || next.Offset > to || next.End > to && next.End-from > limit {
			break
		}
		to = max(to, next.End)
	}
	var size int64
	for i := first; i < last; i++ {
		f.state[i] = coming
		size += f.chunks[i].Size
	}
	*asked++
	f.mu.Unlock()
	space, isRead := f.space, asked == &f.asking
	if isRead {
		space = f.urgent
	}
	var packed []byte
	err := space.Room(size) // before the download, which would be in vain
	if err == nil {
		packed, err = f.read(ctx, from, to, isRead)
	}
	f.mu.Lock()
	*asked--
	f.changed.Broadcast()
	f.mu.Unlock()
	found := make([]byte, last-first) // all away
	if err == nil {
		err = f.put(first, packed, found)
	}
	f.mu.Lock()
	copy(f.state[first:last], found)
	f.changed.Broadcast()
	return err
}

// put unpacks and checks chunks, writes them to their places, and stores the new state
// of each in found. After a wrong chunk it continues with the others.
func (f *File) put(first int, packed []byte, found []byte) (problem error) {
	var s stream
	for i := range found {
		c := f.chunks[first+i]
		begin := c.Offset - f.chunks[first].Offset
		content, err := s.unpack(c, packed[begin:begin+c.End-c.Offset])
		found[i] = here
		if err != nil {
			err = fmt.Errorf("%w: %w", errWrong, err)
			found[i] = wrong
		}
		// Zeros need not be written: a hole in the file reads as zeros and takes no space.
		if err == nil && len(bytes.TrimLeft(content, "\x00")) > 0 {
			_, err = f.file.WriteAt(content, c.At)
		}
		if err == nil {
			_, err = f.have.WriteAt([]byte{here}, int64(first+i))
		}
		if err == nil {
			continue
		}
		err = fmt.Errorf("chunk at %d of %s: %w", c.Offset, f.remote.URL, err)
		if found[i] != wrong {
			found[i] = away // and so are the ones after it
			return err
		}
		if problem == nil {
			problem = err
		}
	}
	return problem
}

// stream unpacks the chunks of a compressed stream in order. For a chunk before the last
// one, or of another stream, it starts again.
type stream struct {
	// offset is the stream's offset in the blob. at is the number of unpacked bytes.
	offset, at int64
	unpacked   *gzip.Reader // nil before the first
}

func (s *stream) unpack(c chunk, packed []byte) (content []byte, err error) {
	if s.unpacked == nil || s.offset != c.Offset || s.at > c.Inner {
		if s.unpacked, err = gzip.NewReader(bytes.NewReader(packed)); err != nil {
			return nil, err
		}
		s.offset, s.at = c.Offset, 0
	}
	skipped, err := io.CopyN(io.Discard, s.unpacked, c.Inner-s.at)
	s.at += skipped
	if err != nil {
		return nil, err
	}
	content = make([]byte, c.Size)
	n, err := io.ReadFull(s.unpacked, content)
	s.at += int64(n)
	if err != nil {
		return nil, err
	}
	if own := c.Digest.Algorithm().FromBytes(content); own != c.Digest {
		return nil, fmt.Errorf("its digest is %s, not %s", own, c.Digest)
	}
	return content, nil
}
