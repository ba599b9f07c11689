package launch

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/kube/workload"
)

// sifScheme begins an image of a manifest that is a SIF file.
const sifScheme = "sif:"

// nameFiles gives the SIF files, folders and archives that manifests name as images
// names that Kubernetes takes, and returns them as --image would have them. Paths
// of SIF files are relative to a directory, others absolute.
func nameFiles(objects []workload.Object, dir string) (images []string, err error) {
	named := map[string]bool{}
	for _, object := range objects {
		object.EachImage(func(image string) string {
			path, isSIF := strings.CutPrefix(image, sifScheme)
			switch {
			case isSIF:
				// As in a URL: the same with slashes for a host that is not there.
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
			case !filepath.IsAbs(image): // no name of an image begins so
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

// sifName is a name that says which file it was, and is no other file's.
func sifName(path string) string {
	return fileName("sif.localhost/file", strings.TrimSuffix(filepath.Base(path), ".sif"), path)
}

// rootName is the same of a folder.
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
	// Without a sign that a name must not have twice, or last.
	words := strings.FieldsFunc(base[:min(len(base), 100)], func(r rune) bool { return r == '-' })
	sum := sha256.Sum256([]byte(path))
	return fmt.Sprintf("%s:%s", strings.Join(append([]string{prefix}, words...), "-"), hex.EncodeToString(sum[:6]))
}
