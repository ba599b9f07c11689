package layercache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
)

// Trim removes abandoned files, and the least recently used layers until the remaining ones
// are within the limit. It removes layers without a named image first. Layers that jobs use stay,
// because removing them would free no space.
func (c *Cache) Trim(now time.Time) error {
	var problems []error
	for dir, age := range map[string]time.Duration{c.unfinished(): unfinishedFor, c.partials(): partialFor, c.claims(): unfinishedFor, c.aside(): jobGoneAfter, filepath.Dir(c.job): jobGoneAfter} {
		entries, err := os.ReadDir(dir)
		problems = append(problems, err)
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || now.Sub(info.ModTime()) <= age {
				continue
			}
			// Ignore errors for partial downloads: on NFS a file that a process has open
			// stays until it is closed.
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); dir != c.partials() {
				problems = append(problems, err)
			}
		}
	}
	// Remove unfinished images of jobs that ended without a cleanup but do not have folders
	// old enough to be removed.
	parts, err := filepath.Glob(filepath.Join(filepath.Dir(c.job), "*", "*"+partExtension))
	problems = append(problems, err)
	for _, part := range parts {
		info, err := os.Lstat(part)
		if err == nil && now.Sub(info.ModTime()) > unfinishedFor {
			problems = append(problems, ignoreGone(os.Remove(part)))
		}
	}
	problems = append(problems, c.shrink(c.limit, true))
	// Others may have written to the same file system or quota meanwhile. Each removed
	// layer helps them, even if it is not enough.
	problems = append(problems, c.freeSpace(0, true))
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("trim cache of layers: %w", err)
	}
	return nil
}

// ignoreGone returns nil if another process has already removed the file.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// shrink removes partial downloads and layers until the remaining ones have at most limit
// bytes. If that is impossible, it removes no layer and returns errNoSpace, or, with
// whatThereIs, removes as many as it can.
func (c *Cache) shrink(limit int64, whatThereIs bool) error {
	files, named, err := c.byAge()
	if err != nil {
		return err
	}
	files = slices.DeleteFunc(files, func(info fs.FileInfo) bool { return c.KeepNamed && named[digestOf(info.Name())] })
	_, total, err := c.beginnings()
	if err != nil {
		return err
	}
	for _, info := range files {
		total += info.Size()
	}
	return c.free(total-limit, slices.DeleteFunc(files, inUse), whatThereIs)
}

// Usage is the content of the cache. Its bytes include partial downloads.
type Usage struct {
	Layers int
	Bytes  int64
}

// Usage returns the number of layers and the bytes that the cache uses.
func (c *Cache) Usage() (Usage, error) {
	files, total, err := c.files()
	_, more, err2 := c.beginnings()
	return Usage{len(files), total + more}, errors.Join(err, err2)
}

// digestOf returns the digest in the name of a layer's file.
func digestOf(file string) digest.Digest {
	return digest.NewDigestFromEncoded(digest.SHA256, file[:max(0, len(file)-len(imageExtension))])
}

// Layers returns the digests of all layers in the cache.
func (c *Cache) Layers() (layers []digest.Digest, err error) {
	files, _, err := c.files()
	for _, info := range files {
		if d := digestOf(info.Name()); d.Validate() == nil {
			layers = append(layers, d)
		}
	}
	return layers, err
}

// VerifyLayer reads all of a layer and checks it. It puts a damaged layer aside and returns
// an error. The error for a missing layer wraps fs.ErrNotExist.
func (c *Cache) VerifyLayer(d digest.Digest) error {
	own, err := c.Take(d)
	if err != nil {
		return err
	}
	if own == "" {
		return fmt.Errorf("read layer %s: %w", d, fs.ErrNotExist)
	}
	if err := verify(own); err != nil {
		return errors.Join(fmt.Errorf("read layer %s: %w", d, err), c.putAside(d, own))
	}
	return nil
}
