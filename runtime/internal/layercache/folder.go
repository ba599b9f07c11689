package layercache

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
)

// folder knows the places of all files below the cache's directory. It knows no job, no
// limit and no log.
type folder struct {
	dir string
}

func (f folder) layers() string     { return filepath.Join(f.dir, "sha256") }
func (f folder) blobs() string      { return filepath.Join(f.dir, "blobs") }
func (f folder) images() string     { return filepath.Join(f.dir, "images") }
func (f folder) partials() string   { return filepath.Join(f.dir, "partial") }
func (f folder) claims() string     { return filepath.Join(f.dir, "claims") }
func (f folder) unfinished() string { return filepath.Join(f.dir, "unfinished") }
func (f folder) aside() string      { return filepath.Join(f.dir, "damaged") }

// path returns the path of a layer's image.
func (f folder) path(d digest.Digest) string {
	return filepath.Join(f.layers(), d.Encoded()+imageExtension)
}

// blobPath returns the file of a manifest or configuration.
func (f folder) blobPath(d digest.Digest) string { return filepath.Join(f.blobs(), d.Encoded()) }

// record returns the path of the record of a name for a platform. Both may have characters
// that file names must not have, so the file is named after their digests. Earlier versions
// kept only one platform of a name, and wrote files without the platform's digest.
func (f folder) record(name, platform string) string {
	file := digest.FromString(name).Encoded()
	if platform != "" {
		file += "-" + digest.FromString(platform).Encoded()[:16]
	}
	return filepath.Join(f.images(), file+recordExtension)
}

// paths returns the files of an image.
func (f folder) paths(image Image) (paths []string) {
	for _, d := range image.Layers {
		paths = append(paths, f.path(d))
	}
	for _, desc := range image.Blobs {
		if desc.Digest.Validate() == nil {
			paths = append(paths, f.blobPath(desc.Digest))
		}
	}
	return paths
}

// files returns the layers and their total size in bytes.
func (f folder) files() (files []fs.FileInfo, total int64, err error) {
	entries, err := os.ReadDir(f.layers())
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // otherwise another process has removed the file
			files = append(files, info)
			total += info.Size()
		}
	}
	return files, total, err
}

// remove removes layers.
func (f folder) remove(gone []fs.FileInfo) error {
	var problems []error
	for _, info := range gone {
		problems = append(problems, ignoreGone(os.Remove(filepath.Join(f.layers(), info.Name()))))
	}
	return errors.Join(problems...)
}

// write replaces the file at path atomically.
func (f folder) write(path string, content []byte) error {
	temporary := filepath.Join(f.unfinished(), rand.Text())
	defer os.Remove(temporary)
	if err := os.WriteFile(temporary, content, 0o400); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
