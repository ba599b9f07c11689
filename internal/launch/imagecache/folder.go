package imagecache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/rundir"
)

// TryFolder returns the reason why a folder's file system cannot hold an image
// cache. Jobs share layers by hard links between folders, and files that other
// users can change are not trusted.
func TryFolder(folder string) error {
	var dirs [2]string
	for i := range dirs {
		dir, err := os.MkdirTemp(folder, ".berth-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		dirs[i] = dir
	}
	var st unix.Stat_t
	if err := unix.Stat(dirs[0], &st); err != nil {
		return fmt.Errorf("look at %s: %w", dirs[0], err)
	}
	if st.Uid != uint32(os.Getuid()) || st.Mode&0o022 != 0 {
		return fmt.Errorf("its file system gives new folders to user %d with mode %#o, so others may change them", st.Uid, st.Mode&0o777)
	}
	file := filepath.Join(dirs[0], "file")
	err := os.WriteFile(file, nil, 0o600)
	if err == nil {
		err = os.Link(file, filepath.Join(dirs[1], "file"))
	}
	if err != nil {
		return fmt.Errorf("its file system has to link files between folders: %w", err)
	}
	return nil
}

// MakeFolder creates the folder of the image cache if it does not exist. It returns an
// error with the exit code NoInput if the user cannot write to the folder.
func MakeFolder(folder string) error {
	err := os.MkdirAll(folder, 0o700)
	if err == nil && !rundir.Writable(folder) {
		err = os.ErrPermission
	}
	if err != nil {
		return exitcode.Wrap(exitcode.NoInput, fmt.Errorf("use %s as cache of images: %w; name a folder of yours with --image-cache DIR", folder, err))
	}
	return nil
}

// DefaultFolder returns the folder of the cache if the user names none.
func DefaultFolder(getenv func(string) string) (string, error) {
	if dir := getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "berth"), nil
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".cache", "berth"), nil
	}
	return "", exitcode.Wrap(exitcode.Usage, errors.New("no folder for images: HOME is not set; name one with --image-cache DIR"))
}
