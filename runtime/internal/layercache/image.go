package layercache

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is an image that a user has put into the cache under a name. It needs no
// registry, unlike the layers that jobs leave.
type Image struct {
	// Name is the full name, such as docker.io/library/busybox:1.37.
	Name string `json:"name"`
	// Target is the index or manifest that the name refers to.
	Target ocispec.Descriptor `json:"target"`
	// Blobs holds the target, the manifest and the configuration. The cache keeps
	// them as they are.
	Blobs []ocispec.Descriptor `json:"blobs"`
	// Layers holds the digests of the uncompressed layers, the lowest first.
	Layers []digest.Digest `json:"layers"`
	// Platform is the platform of the layers.
	Platform string    `json:"platform"`
	Time     time.Time `json:"time"`
}

const (
	recordExtension = ".json"
	// maxBlob is the maximum size of a manifest or configuration.
	maxBlob = 8 << 20
	// maxRecord bounds the records of images.
	maxRecord = 1 << 20
)

// ErrNoImage is the error for a name that the cache does not know.
var ErrNoImage = errors.New("the cache has no image of that name")

// errNoRecord is the error for a file that does not describe an image.
var errNoRecord = errors.New("it is not a record of an image")

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
		return fmt.Errorf("the digest of its content is %s", own)
	}
	return nil
}

// Blob reads a manifest or a configuration. If it is missing or damaged, the error wraps
// fs.ErrNotExist. It removes a damaged one.
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
		return nil, fmt.Errorf("it is not a file of at most %d bytes", limit)
	}
	return os.ReadFile(path)
}

// Name records an image under its name. It replaces an image of that name and platform.
func (c *Cache) Name(image Image) error {
	text, err := json.Marshal(image)
	if err == nil {
		err = c.write(c.record(image.Name, image.Platform), append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("name image %s: %w", image.Name, err)
	}
	before, err := readRecord(c.record(image.Name, ""))
	if image.Platform != "" && (err == nil && before.Platform == image.Platform || errors.Is(err, errNoRecord)) {
		_ = os.Remove(c.record(image.Name, "")) // otherwise the image would be recorded twice, or an unusable record would stay
	}
	return nil
}

// OfName returns the images of a full name, one for each platform, the newest first.
// It returns the error of an unreadable image only if there is no other image.
func (f folder) OfName(name string) (all []Image, err error) {
	entries, err := os.ReadDir(f.images())
	if err != nil {
		return nil, fmt.Errorf("find image %s: %w", name, err)
	}
	none := ErrNoImage
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), digest.FromString(name).Encoded()) {
			continue
		}
		image, err := readRecord(filepath.Join(f.images(), e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist): // somebody has just removed it
		case err != nil:
			none = err
		case image.Name != name:
			none = fmt.Errorf("its record is of image %s", image.Name)
		default:
			all = append(all, image)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("find image %s: %w", name, none)
	}
	slices.SortStableFunc(all, func(a, b Image) int { return b.Time.Compare(a.Time) })
	return all, nil
}

// Image finds the image of a full name for a platform. Without one the error wraps
// ErrNoImage.
func (f folder) Image(name string, platform platforms.MatchComparer) (Image, error) {
	all, err := f.OfName(name)
	if err != nil {
		return Image{}, err
	}
	image, found := Best(all, platform)
	if !found {
		return Image{}, fmt.Errorf("find image %s for the requested platform: %w", name, ErrNoImage)
	}
	return image, nil
}

// Best returns the image that fits a platform best.
func Best(all []Image, platform platforms.MatchComparer) (best Image, found bool) {
	var own ocispec.Platform
	for _, image := range all {
		parsed, err := platforms.Parse(image.Platform)
		if err == nil && platform.Match(parsed) && (!found || platform.Less(parsed, own)) {
			best, own, found = image, parsed, true
		}
	}
	return best, found
}

func readRecord(path string) (image Image, err error) {
	content, err := readBounded(path, maxRecord)
	if err != nil {
		return image, err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(&image); err != nil {
		return image, fmt.Errorf("%w: %w", errNoRecord, err)
	}
	for _, d := range image.Layers {
		if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
			return image, fmt.Errorf("%w: %q is not the digest of a layer", errNoRecord, d)
		}
	}
	return image, nil
}

// Images returns all named images, sorted by name and platform. The error lists the
// unreadable ones; the others are returned nevertheless.
func (f folder) Images() (all []Image, err error) {
	entries, err := os.ReadDir(f.images())
	problems := []error{err}
	for _, e := range entries {
		image, err := readRecord(filepath.Join(f.images(), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // somebody has just removed it
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("read %s: %w", filepath.Join(f.images(), e.Name()), err))
			continue
		}
		all = append(all, image)
	}
	slices.SortFunc(all, func(a, b Image) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Platform, b.Platform))
	})
	return all, errors.Join(problems...)
}

// named returns the layers of named images.
func (f folder) named() (map[digest.Digest]bool, error) {
	all, err := f.Images()
	layers := map[digest.Digest]bool{}
	for _, image := range all {
		for _, d := range image.Layers {
			layers[d] = true
		}
	}
	return layers, err
}

// Size returns the size of an image's layers in bytes, and the number of missing layers.
func (f folder) Size(image Image) (size int64, missing int) {
	for _, d := range image.Layers {
		info, err := os.Stat(f.path(d))
		if err != nil {
			missing++
			continue
		}
		size += info.Size()
	}
	return size, missing
}

// Remove removes the images of a name, or only the ones for a platform, and the
// files that no other named image has. It returns the size of these files in bytes.
// Jobs that use them keep them until they end.
func (c *Cache) Remove(name string, platform platforms.Matcher) (freed int64, err error) {
	all, err := c.OfName(name)
	if err != nil {
		return 0, err
	}
	var gone []Image
	for _, image := range all {
		if own, err := platforms.Parse(image.Platform); platform == nil || err == nil && platform.Match(own) {
			gone = append(gone, image)
		}
	}
	if len(gone) == 0 {
		return 0, fmt.Errorf("find image %s for the requested platform: %w", name, ErrNoImage)
	}
	for _, image := range gone {
		err := ignoreGone(os.Remove(c.record(name, image.Platform)))
		if before, old := readRecord(c.record(name, "")); old == nil && before.Platform == image.Platform {
			err = errors.Join(err, ignoreGone(os.Remove(c.record(name, ""))))
		}
		if err != nil {
			return 0, fmt.Errorf("remove image %s: %w", name, err)
		}
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
	for _, image := range gone {
		for _, path := range c.paths(image) {
			info, err := os.Stat(path)
			if err != nil || used[path] {
				continue
			}
			if err := ignoreGone(os.Remove(path)); err != nil {
				return freed, fmt.Errorf("remove image %s: %w", name, err)
			}
			freed += info.Size()
		}
	}
	return freed, nil
}
