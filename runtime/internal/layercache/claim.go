package layercache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
)

const (
	claimExtension = ".claim"
	// claimGoneAfter is the age of an abandoned claim. claimSign is the interval
	// of its renewals. Kernels cache a file's times for up to a minute (acregmax of NFS).
	claimGoneAfter = 5 * time.Minute
	claimSign      = time.Minute
)

// claim makes this job the only one that copies a layer, because every node of a large job
// may have made the layer at the same time. It returns a function that gives the claim up,
// or nil if another job holds the claim. If two jobs hold it, because one seemed to have
// ended, the layer is only copied twice.
//
// The claim is a file in the job's folder with a second, shared name. If it has only the
// shared name, its job has ended. Its times are by the clock of the file server.
func (c *Cache) claim(d digest.Digest) (giveUp func(), err error) {
	own := filepath.Join(c.job, d.Encoded()+claimExtension)
	shared := filepath.Join(c.claims(), d.Encoded())
	if err := os.WriteFile(own, []byte{0}, 0o600); err != nil {
		return nil, err
	}
	err = os.Link(own, shared)
	switch {
	case !errors.Is(err, fs.ErrExist):
	case same(own, shared):
		err = nil // the answer of the file server was lost, or containerd was restarted
	case abandoned(own, shared):
		if err = ignoreGone(os.Remove(shared)); err == nil {
			err = os.Link(own, shared)
		}
	}
	if err != nil {
		err = errors.Join(err, os.Remove(own))
		if errors.Is(err, fs.ErrExist) {
			return nil, nil
		}
		return nil, err
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(claimSign):
				refresh(own)
			}
		}
	}()
	return func() {
		close(done)
		<-ended
		if same(own, shared) {
			_ = os.Remove(shared)
		}
		_ = os.Remove(own)
	}, nil
}

// refresh sets the time of a claim to the current time of the server, as every
// write does.
func refresh(path string) {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer file.Close()
	_, _ = file.WriteAt([]byte{0}, 0)
}

// abandoned reports whether no job holds a claim any more. It compares the claim's
// time with that of a fresh file. A missing claim is abandoned, too.
func abandoned(fresh, claim string) bool {
	now, err := os.Stat(fresh)
	if err != nil {
		return false
	}
	info, err := os.Stat(claim)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 1 || now.ModTime().Sub(info.ModTime()) > claimGoneAfter
}
