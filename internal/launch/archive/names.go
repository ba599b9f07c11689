package archive

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
)

// sifScheme is the prefix of an image in a manifest that is a SIF file.
const sifScheme = "sif:"

// imaged is an object with images. EachImage replaces each image by the result of change.
type imaged interface {
	EachImage(change func(image string) string)
}

// NameFiles replaces the paths of SIF files, folders and archives in manifests by valid
// image names. It returns each name with its path in the form of --image, NAME=PATH. Paths
// of SIF files are relative to dir. Other paths must be absolute.
func NameFiles[T imaged](objects []T, dir string) (images []string, err error) {
	named := map[string]bool{}
	for _, object := range objects {
		object.EachImage(func(image string) string {
			path, isSIF := strings.CutPrefix(image, sifScheme)
			switch {
			case isSIF:
				// As in a URL with an empty host, "//" may precede the path.
				if rest, slashes := strings.CutPrefix(path, "//"); slashes {
					path = rest
				}
				if path == "" {
					err = fmt.Errorf("image %q names no file: give one, such as %strain.sif", image, sifScheme)
					return image
				}
				if !filepath.IsAbs(path) {
					path = filepath.Join(dir, path)
				}
			case !filepath.IsAbs(image): // the name of an image never begins with a slash
				return image
			}
			path = filepath.Clean(path)
			name := rootName(path)
			if isSIF {
				name = sifName(path)
			}
			if !named[name] {
				named[name] = true
				images = append(images, name+"="+path)
			}
			return name
		})
	}
	return images, err
}

// sifName returns an image name for a SIF file. It contains the base name of the file and
// a hash of path, which makes it unique.
func sifName(path string) string {
	return fileName("sif.localhost/file", strings.TrimSuffix(filepath.Base(path), ".sif"), path)
}

// rootName returns the same kind of name as sifName for a folder or an archive.
func rootName(path string) string {
	return fileName("root.localhost/folder", filepath.Base(path), path)
}

func fileName(prefix, base, path string) string {
	base = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(base))
	// A name must not contain two hyphens in a row, nor end with one.
	words := strings.FieldsFunc(base[:min(len(base), 100)], func(r rune) bool { return r == '-' })
	sum := sha256.Sum256([]byte(path))
	return fmt.Sprintf("%s:%s", strings.Join(append([]string{prefix}, words...), "-"), hex.EncodeToString(sum[:6]))
}
