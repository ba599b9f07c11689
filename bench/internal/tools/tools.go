// Package tools lets a machine without containers run the programs of an image:
// the same files that containers run, so that bare metal is compared with
// containers and not one version of a program with another.
package tools

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// root returns the folder with an archive's files, on this machine and for this
// user.
func root(archive string) (string, error) {
	info, err := os.Stat(archive)
	if err != nil {
		return "", fmt.Errorf("look for the programs of the bench: %w", err)
	}
	path, err := filepath.Abs(archive)
	if err != nil {
		return "", err
	}
	// A changed archive of the same name gets another folder.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", path, info.Size(), info.ModTime().UnixNano()))
	return filepath.Join(os.TempDir(), fmt.Sprintf("berth-bench-%d-%x", os.Getuid(), sum[:6])), nil
}

// Unpack unpacks an image archive in the format of docker save, and returns the folder.
// It does nothing if the folder exists.
func Unpack(archive string) (string, error) {
	dir, err := root(archive)
	if err != nil {
		return "", err
	}
	if info, err := os.Lstat(dir); err == nil {
		owner, ok := info.Sys().(*syscall.Stat_t)
		if !info.IsDir() || !ok || int(owner.Uid) != os.Getuid() {
			return "", fmt.Errorf("%s belongs to another user: remove it, or set TMPDIR", dir)
		}
		return dir, nil
	}
	image, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		return "", fmt.Errorf("read image archive %s: %w; the archive must be in the format of 'docker save'", archive, err)
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+"-")
	if err != nil {
		return "", fmt.Errorf("make a folder for the programs: %w", err)
	}
	files := mutate.Extract(image)
	err = errors.Join(extract(files, fresh), files.Close())
	if err == nil {
		err = os.Rename(fresh, dir)
		if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) { // another process was faster
			return dir, os.RemoveAll(fresh)
		}
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("unpack %s: %w", archive, err), os.RemoveAll(fresh))
	}
	return dir, nil
}

// Remove removes the folder of Unpack.
func Remove(archive string) error {
	dir, err := root(archive)
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func extract(from io.Reader, to string) error {
	into, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer into.Close()
	for entries := tar.NewReader(from); ; {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(strings.TrimPrefix(entry.Name, "/"))
		if name == "." {
			continue
		}
		if err := into.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		switch entry.Typeflag {
		case tar.TypeDir:
			err = into.MkdirAll(name, 0o755)
		case tar.TypeSymlink:
			err = into.Symlink(entry.Linkname, name)
		case tar.TypeLink:
			err = into.Link(filepath.Clean(strings.TrimPrefix(entry.Linkname, "/")), name)
		case tar.TypeReg:
			err = writeFile(into, name, entries, fs.FileMode(entry.Mode).Perm())
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
	}
}

func writeFile(into *os.Root, name string, from io.Reader, mode fs.FileMode) error {
	file, err := into.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode|0o200)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	return errors.Join(err, file.Close())
}

// Command returns the command that starts a program of an unpacked image without a
// container: with the image's own loader and libraries. It returns an error if the image
// has no such program, or no loader of the GNU C library.
func Command(root string, args []string) ([]string, error) {
	var program string
	for _, dir := range []string{"usr/bin", "usr/sbin", "bin"} {
		path := filepath.Join(root, dir, args[0])
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
			program = path
			break
		}
	}
	if program == "" {
		return nil, fmt.Errorf("the image has no program %s", args[0])
	}
	loaders, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu/ld-linux-*.so.*"))
	if err != nil || len(loaders) == 0 {
		return nil, fmt.Errorf("%s has no loader of the GNU C library in usr/lib", root)
	}
	libraries := filepath.Dir(loaders[0])
	// Some packages keep libraries in a separate folder, which their programs
	// find relative to themselves.
	more, err := filepath.Glob(filepath.Join(libraries, "*", "lib*.so.*"))
	if err != nil {
		return nil, err
	}
	path := []string{libraries}
	for _, library := range more {
		if dir := filepath.Dir(library); !slices.Contains(path, dir) {
			path = append(path, dir)
		}
	}
	command := []string{loaders[0], "--library-path", strings.Join(path, ":"), "--argv0", args[0], program}
	return append(command, args[1:]...), nil
}
