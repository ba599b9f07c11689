package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"berth.dev/berth/internal/base/cluster"
)

// Archive is an image file on the head, or a folder that holds an unpacked image
// or an OCI layout. Every node has to see such a folder.
type Archive struct {
	// Name is the user's name for the image. It may be empty.
	Name string
	// Path is absolute. Another node's file at that path is the same file if
	// Size, in bytes, and Modified agree. For an OCI layout they describe its
	// index. For other folders they are zero.
	Path     string
	Size     int64
	Modified time.Time
	// Root marks a folder, SIF a SIF file. Nodes may use both in place.
	Root, SIF bool
}

// Find returns the archives that the command line names. It returns an error if one cannot
// be read, or if its beginning shows that it is no image.
func Find(images []string) ([]Archive, error) {
	var found []Archive
	for _, image := range images {
		name, path, _ := cluster.SplitImage(image)
		info, err := statReadable(path)
		a := Archive{Name: name}
		switch {
		case err == nil && info.IsDir():
			a.Root = true
			info, err = checkFolder(path)
		case err == nil:
			a.SIF, err = checkArchive(path)
		}
		if err == nil {
			a.Path, err = filepath.Abs(path)
		}
		if err != nil {
			return nil, fmt.Errorf("read image archive: %w", err)
		}
		if info != nil {
			a.Size, a.Modified = info.Size(), info.ModTime()
		}
		found = append(found, a)
	}
	return found, nil
}

// ofRoots lists folders at the root of an image. Every image has some of them.
var ofRoots = []string{"bin", "etc", "lib", "usr", "sbin", "opt", ".singularity.d"}

// These files mark a folder as an OCI layout and list its content.
const (
	layoutFile  = "oci-layout"
	layoutIndex = "index.json"
)

// checkFolder accepts a folder with an unpacked image or an OCI layout, and
// refuses a folder named by mistake. For a layout it returns the index.
func checkFolder(path string) (index os.FileInfo, err error) {
	has := func(name string) bool {
		_, err := os.Lstat(filepath.Join(path, name))
		return err == nil
	}
	if has(layoutFile) {
		return statReadable(filepath.Join(path, layoutIndex))
	}
	if slices.ContainsFunc(ofRoots, has) {
		return nil, nil
	}
	return nil, fmt.Errorf("%s is a folder without an unpacked image: it has no bin, usr or etc, and no file %s", path, layoutFile)
}

// checkArchive checks the beginning of a file, so that a file that is not an archive
// is refused before a cluster starts for it.
func checkArchive(path string) (isSIF bool, err error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	start := bufio.NewReader(file)
	magic, _ := start.Peek(64)
	if bytes.HasPrefix(magic, []byte{0x1f, 0x8b}) || bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return false, nil // gzip, zstd
	}
	if len(magic) == 64 && bytes.HasPrefix(magic[32:], []byte("SIF_MAGIC\x00")) {
		return true, nil // behind a line for the shell
	}
	if _, err := tar.NewReader(start).Next(); err != nil {
		return false, fmt.Errorf("%s is neither a tar archive nor a SIF file: %w; 'docker save' and 'skopeo copy ... oci-archive:FILE' make one", path, err)
	}
	return false, nil
}

// Here reports whether this node has the same file.
func (a Archive) Here() bool {
	path := a.Path
	switch {
	case a.Root && a.Modified.IsZero(): // an unpacked image has no file to compare
		info, err := statReadable(path)
		return err == nil && info.IsDir()
	case a.Root:
		path = filepath.Join(path, layoutIndex)
	}
	info, err := statReadable(path)
	return err == nil && info.Mode().IsRegular() && info.Size() == a.Size && info.ModTime().Equal(a.Modified)
}

// statReadable describes a file that this user can read.
func statReadable(path string) (os.FileInfo, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return file.Stat()
}
