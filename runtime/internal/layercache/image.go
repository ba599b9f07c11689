package layercache

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is one that the cache knows by name, because somebody has brought it
// there: other than the layers that jobs leave, it can be had without its
// registry.
type Image struct {
	// Name is the full one, such as docker.io/library/busybox:1.37.
	Name string `json:"name"`
	// Target is what the name stands for: an index or a manifest.
	Target ocispec.Descriptor `json:"target"`
	// Blobs are the target, the manifest and the configuration, which the cache
	// keeps as they are.
	Blobs []ocispec.Descriptor `json:"blobs"`
	// Layers, the lowest first, by their digests without compression.
	Layers []digest.Digest `json:"layers"`
	// Platform is the one that the layers are for.
	Platform string    `json:"platform"`
	Time     time.Time `json:"time"`
}

const (
	recordExtension = ".json"
	// maxBlob is how large the largest manifest or configuration may be.
	maxBlob = 8 << 20
	// maxRecord bounds the files that say what images there are.
	maxRecord = 1 << 20
)

// ErrNoImage is of names that the cache does not know.
var ErrNoImage = errors.New("the cache has no image of that name")

func (c *Cache) blobs() string  { return filepath.Join(c.dir, "blobs") }
func (c *Cache) images() string { return filepath.Join(c.dir, "images") }

func (c *Cache) blobPath(d digest.Digest) string { return filepath.Join(c.blobs(), d.Encoded()) }

// record is the file of a name, which may have signs in it that files must not.
func (c *Cache) record(name string) string {
	return filepath.Join(c.images(), digest.FromString(name).Encoded()+recordExtension)
}

// write puts content in place in one step.
func (c *Cache) write(path string, content []byte) error {
	temporary := filepath.Join(c.unfinished(), rand.Text())
	defer os.Remove(temporary)
	if err := os.WriteFile(temporary, content, 0o400); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// PutBlob keeps a manifest or a configuration.
func (c *Cache) PutBlob(desc ocispec.Descriptor, content []byte) error {
	if err := checkBlob(desc, content); err != nil {
		return fmt.Errorf("keep %s: %w", desc.Digest, err)
	}
	if err := c.write(c.blobPath(desc.Digest), content); err != nil {
		return fmt.Errorf("keep %s: %w", desc.Digest, err)
	}
	return nil
}

func checkBlob(desc ocispec.Descriptor, content []byte) error {
	if err := desc.Digest.Validate(); err != nil {
		return err
	}
	if len(content) > maxBlob {
		return fmt.Errorf("it has more than %d bytes", maxBlob)
	}
	if own := desc.Digest.Algorithm().FromBytes(content); own != desc.Digest {
		return fmt.Errorf("its content is %s", own)
	}
	return nil
}

// Blob reads a manifest or a configuration. A damaged one is as one that is not
// there, of which the error says fs.ErrNotExist.
func (c *Cache) Blob(d digest.Digest) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", d, err, fs.ErrNotExist)
	}
	content, err := readBounded(c.blobPath(d), maxBlob)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", d, err)
	}
	if err := checkBlob(ocispec.Descriptor{Digest: d}, content); err != nil {
		c.log(fmt.Sprintf("%s is damaged in the cache: %v", d, err))
		return nil, errors.Join(fmt.Errorf("read %s: %w: %w", d, err, fs.ErrNotExist), os.Remove(c.blobPath(d)))
	}
	return content, nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	if err := checkOwn(path); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("it is no file of at most %d bytes", limit)
	}
	return os.ReadFile(path)
}

// Name gives an image its name, whatever had it before.
func (c *Cache) Name(image Image) error {
	text, err := json.Marshal(image)
	if err == nil {
		err = c.write(c.record(image.Name), append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("name image %s: %w", image.Name, err)
	}
	return nil
}

// Image finds an image by its full name.
func (c *Cache) Image(name string) (Image, error) {
	image, err := readRecord(c.record(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Image{}, fmt.Errorf("find image %s: %w", name, ErrNoImage)
	case err != nil:
		return Image{}, fmt.Errorf("find image %s: %w", name, err)
	case image.Name != name:
		return Image{}, fmt.Errorf("find image %s: its file is of %s", name, image.Name)
	}
	return image, nil
}

func readRecord(path string) (image Image, err error) {
	content, err := readBounded(path, maxRecord)
	if err != nil {
		return image, err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(&image); err != nil {
		return image, err
	}
	for _, d := range image.Layers {
		if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
			return image, fmt.Errorf("layer %q is none", d)
		}
	}
	return image, nil
}

// Images are all that have a name, sorted by it. One whose file cannot be read
// is in the error, the others are returned all the same.
func (c *Cache) Images() (all []Image, err error) {
	entries, err := os.ReadDir(c.images())
	problems := []error{err}
	for _, e := range entries {
		image, err := readRecord(filepath.Join(c.images(), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // somebody has just removed it
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("read %s: %w", filepath.Join(c.images(), e.Name()), err))
			continue
		}
		all = append(all, image)
	}
	slices.SortFunc(all, func(a, b Image) int { return strings.Compare(a.Name, b.Name) })
	return all, errors.Join(problems...)
}

// named are the layers of images with names.
func (c *Cache) named() (map[digest.Digest]bool, error) {
	all, err := c.Images()
	layers := map[digest.Digest]bool{}
	for _, image := range all {
		for _, d := range image.Layers {
			layers[d] = true
		}
	}
	return layers, err
}

// Size is how many bytes the layers of an image take, and how many of them are
// not there.
func (c *Cache) Size(image Image) (size int64, missing int) {
	for _, d := range image.Layers {
		info, err := os.Stat(c.path(d))
		if err != nil {
			missing++
			continue
		}
		size += info.Size()
	}
	return size, missing
}

// Remove forgets an image, and what no other one with a name has of it. It
// returns how many bytes that was; jobs that use it keep it until they end.
func (c *Cache) Remove(name string) (freed int64, err error) {
	image, err := c.Image(name)
	if err != nil {
		return 0, err
	}
	if err := os.Remove(c.record(name)); err != nil {
		return 0, fmt.Errorf("remove image %s: %w", name, err)
	}
	others, err := c.Images()
	if err != nil {
		return 0, fmt.Errorf("remove image %s: what others have of it is not known, and stays: %w", name, err)
	}
	used := map[string]bool{}
	for _, other := range others {
		for _, path := range c.paths(other) {
			used[path] = true
		}
	}
	for _, path := range c.paths(image) {
		info, err := os.Stat(path)
		if err != nil || used[path] {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return freed, fmt.Errorf("remove image %s: %w", name, err)
		}
		freed += info.Size()
	}
	return freed, nil
}

// paths are the files of an image.
func (c *Cache) paths(image Image) (paths []string) {
	for _, d := range image.Layers {
		paths = append(paths, c.path(d))
	}
	for _, desc := range image.Blobs {
		if desc.Digest.Validate() == nil {
			paths = append(paths, c.blobPath(desc.Digest))
		}
	}
	return paths
}
