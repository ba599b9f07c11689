// Package layercache keeps layer images in a folder that all nodes and all jobs
// of a user share, for example on NFS. Other jobs use a layer that one job has
// converted directly from there.
//
// It takes no locks, because locks do not work on every file system. A complete
// file gets its name by a link that never replaces another file. A job makes a
// link to each file that it uses in a folder for that job, so the file stays
// even if the first name is removed. Package erofs defines the image format.
package layercache

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/erofs"
)

const (
	// version names the folder of the layers. Another image format needs another version.
	version        = "layers-1"
	jobsDir        = "jobs"
	imageExtension = ".erofs"
	// partExtension marks images that are being written.
	partExtension = ".part"
	// unfinishedFor is the maximum age of an unfinished file. Older files are removed,
	// because nobody will finish them. jobGoneAfter is the maximum time since the last
	// call of Alive. Then the folder of the job is removed.
	unfinishedFor = 24 * time.Hour
	jobGoneAfter  = 14 * 24 * time.Hour
)

// Cache is a folder of layers. Several processes and nodes may use it at once.
type Cache struct {
	folder
	// job is the folder with the layers that this job uses on this node. The process
	// that ends the job removes it.
	job string
	// limit is the cache's maximum size in bytes.
	limit int64
	log   func(string)
	// publishing is held while a layer is copied.
	publishing sync.Mutex
	// KeepNamed keeps layers of named images, and does not count them for the limit:
	// the user who brought them may have set another limit.
	KeepNamed bool
	// space returns the number of bytes that may still be written to the file system.
	space func() (int64, error)
}

// Open opens the cache in one of the user's folders for a job, and makes missing folders.
// limit is the maximum size in bytes. Notices for the user go to log. Open fails if
// another user owns the cache's folder or may write to it.
func Open(dir, job string, limit int64, log func(string)) (*Cache, error) {
	c := &Cache{folder: folder{filepath.Join(dir, version)}, limit: limit, log: log}
	c.space = func() (int64, error) { return spaceIn(c.dir) }
	c.job = filepath.Join(c.dir, jobsDir, job)
	// No other user may be able to put a file there.
	if err := checkOwn(c.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open cache of layers: %w", err)
	}
	for _, d := range []string{c.layers(), c.blobs(), c.images(), c.unfinished(), c.partials(), c.claims(), c.aside(), c.job} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("open cache of layers: %w", err)
		}
	}
	// Another process may have made the folder first, and on some file systems another
	// user owns all folders.
	if err := checkOwn(c.dir); err != nil {
		return nil, fmt.Errorf("open cache of layers: %w", err)
	}
	return c, nil
}

// Close removes the job's folder, so that the paths from Take become invalid.
func (c *Cache) Close() error { return os.RemoveAll(c.job) }

// Limit returns the cache's maximum size in bytes.
func (c *Cache) Limit() int64 { return c.limit }

// checkOwn returns an error for a file or folder that other users may change.
func checkOwn(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	switch {
	case st.Uid != uint32(os.Getuid()):
		return fmt.Errorf("trust %s: it is another user's; name your own folder with --image-cache DIR", path)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("trust %s (mode %#o): others may change it; chmod go-w %s, or name another folder", path, st.Mode&0o777, path)
	}
	return nil
}

// Take returns the path of a layer's image, which stays valid until the end of the job.
// It returns "" if the cache lacks the layer, or if the image was damaged and is now put
// aside.
func (c *Cache) Take(d digest.Digest) (string, error) {
	if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return "", nil
	}
	own := filepath.Join(c.job, d.Encoded()+imageExtension)
	err := os.Link(c.path(d), own)
	if errors.Is(err, fs.ErrExist) && !same(c.path(d), own) {
		// The job's image was put aside, and another job has published a good one.
		if err = os.Remove(own); err == nil {
			err = os.Link(c.path(d), own)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil && !errors.Is(err, fs.ErrExist):
		return "", fmt.Errorf("take layer %s from the cache: %w", d, err)
	}
	if err := check(own); err != nil {
		if !errors.Is(err, erofs.ErrCorrupt) {
			return "", fmt.Errorf("take layer %s from the cache: %w", d, err)
		}
		c.log(fmt.Sprintf("layer %s is damaged in the cache, is put aside, and has to be fetched again: %v", d, err))
		return "", c.putAside(d, own)
	}
	now := time.Now()
	// The modification time is the time of the last use.
	_ = os.Chtimes(own, now, now)
	return own, nil
}

// check checks the structure of an image. Each block is checked when it is read.
func check(path string) error {
	if err := checkOwn(path); err != nil {
		return fmt.Errorf("%w: %w", err, erofs.ErrCorrupt)
	}
	return withImage(path, func(*erofs.Image) error { return nil })
}

// putAside takes a damaged image out of use and keeps it for a person to examine.
// The job keeps its link: the process that serves it opens it again after a restart.
func (f folder) putAside(d digest.Digest, own string) error {
	aside := filepath.Join(f.aside(), d.Encoded()+"-"+rand.Text())
	err := os.Link(own, aside)
	// The shared name may belong to a good image by now.
	if err == nil && same(f.path(d), aside) {
		err = os.Remove(f.path(d))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("put damaged layer %s aside: %w", d, err)
	}
	return nil
}

func same(a, b string) bool {
	one, err := os.Stat(a)
	other, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(one, other)
}

// PutAside takes a layer out of use that turned out to be damaged during a read. The
// path is one that Take has returned, or a link to it. PutAside ignores other paths.
func PutAside(path string) error {
	if target, err := os.Readlink(path); err == nil {
		path = target
	}
	name, extension := filepath.Base(path), filepath.Ext(path)
	d := digest.NewDigestFromEncoded(digest.SHA256, name[:len(name)-len(extension)])
	jobs := filepath.Dir(filepath.Dir(path))
	if filepath.Base(jobs) != jobsDir || extension != imageExtension || d.Validate() != nil {
		return nil
	}
	return folder{filepath.Dir(jobs)}.putAside(d, path)
}

// Publish copies the image of a layer into the cache and returns its path as Take
// does; "" if another job is about to publish it. The caller has checked the digest.
// Layers are copied one after the other, because no container waits for them, and the
// folder's file server has other clients, too.
func (c *Cache) Publish(d digest.Digest, from string) (string, error) {
	c.publishing.Lock()
	defer c.publishing.Unlock()
	if _, err := os.Lstat(c.path(d)); err == nil {
		return c.Take(d) // another node was faster
	}
	giveUp, err := c.claim(d)
	if err != nil {
		return "", fmt.Errorf("publish layer %s: %w", d, err)
	}
	if giveUp == nil {
		return "", nil
	}
	defer giveUp()
	if _, err := os.Lstat(c.path(d)); err == nil {
		return c.Take(d) // published since the first check
	}
	path, err := c.Make(d, func(temporary string) error {
		if err := c.fit(from); err != nil {
			return err
		}
		return copyImage(from, temporary)
	})
	if err != nil {
		return "", fmt.Errorf("publish layer %s: %w", d, err)
	}
	return path, nil
}

// fit makes room for a file before it is copied. It returns errNoSpace for a file larger
// than the whole cache.
func (c *Cache) fit(from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.Size() > c.limit {
		return errNoSpace
	}
	if err := c.shrink(c.limit-info.Size(), false); err != nil {
		return err
	}
	return c.FreeSpace(info.Size())
}

// Make calls write with a new path in the cache to write the image of a layer, and
// returns the layer's path as Take does. It returns the error of write.
func (c *Cache) Make(d digest.Digest, write func(path string) error) (string, error) {
	if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return "", fmt.Errorf("layer %q has no digest that is understood (sha256)", d)
	}
	// The file is in the job's folder, so the process that ends the job removes it even
	// if this process is killed first.
	temporary := filepath.Join(c.job, d.Encoded()+"-"+rand.Text()+partExtension)
	defer os.Remove(temporary)
	if err := write(temporary); err != nil {
		return "", err
	}
	if err := verify(temporary); err != nil {
		return "", err
	}
	// Check the space again: meanwhile other nodes may have written, too, and parts of
	// the image's other layers may have arrived.
	space, err := c.space()
	if err == nil {
		err = c.free(-space, nil, false)
	}
	if err != nil {
		return "", err
	}
	if err := os.Link(temporary, c.path(d)); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return c.Take(d)
}

// Scratch makes a folder for temporary files and returns its path. The caller removes it.
func (c *Cache) Scratch() (string, error) {
	dir := filepath.Join(c.unfinished(), rand.Text())
	return dir, os.Mkdir(dir, 0o700)
}

// copyImage copies an image to a new file.
func copyImage(from, to string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o400)
	if err != nil {
		return err
	}
	// Close before naming: with NFS the close makes the content visible to other nodes.
	// Checksums detect what a power failure loses.
	defer func() { err = errors.Join(err, target.Close()) }()
	_, err = io.Copy(target, source)
	return err
}

// verify reads all of an image and checks it.
func verify(path string) error {
	return withImage(path, (*erofs.Image).Verify)
}

func withImage(path string, use func(*erofs.Image) error) error {
	image, file, err := erofs.OpenFile(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return use(image)
}

// Alive records that the job still runs, as the modification time of its folder.
func (c *Cache) Alive() error {
	now := time.Now()
	return os.Chtimes(c.job, now, now)
}
