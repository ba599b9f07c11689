package launch

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/workload"
)

// sifScheme begins an image of a manifest that is a SIF file.
const sifScheme = "sif:"

// nameSIFs gives the SIF files that manifests name as images names that Kubernetes
// takes, and returns them as --image would have them. Paths are relative to a
// directory.
func nameSIFs(objects []workload.Object, dir string) (images []string) {
	named := map[string]bool{}
	for _, object := range objects {
		object.EachImage(func(image string) string {
			path, found := strings.CutPrefix(image, sifScheme)
			if !found {
				return image
			}
			// As in a URL: the same with slashes for a host that is not there.
			if rest, slashes := strings.CutPrefix(path, "//"); slashes {
				path = rest
			}
			if !filepath.IsAbs(path) {
				path = filepath.Join(dir, path)
			}
			name := sifName(path)
			if !named[name] {
				named[name] = true
				images = append(images, name+"="+path)
			}
			return name
		})
	}
	return images
}

// sifName is a name that says which file it was, and is no other file's.
func sifName(path string) string {
	base := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(strings.TrimSuffix(filepath.Base(path), ".sif")))
	base = strings.Trim(base[:min(len(base), 100)], "-")
	sum := sha256.Sum256([]byte(path))
	return fmt.Sprintf("sif.localhost/%s:%s", strings.Trim("file-"+base, "-"), hex.EncodeToString(sum[:6]))
}
