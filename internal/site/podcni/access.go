package podcni

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// rootsAlone rejects a list or plugins that a user other than root can replace,
// because they run as root. It checks whole directories, because plugins start
// other plugins from there.
func rootsAlone(list string, plugins []string) error {
	all := []string{filepath.Dir(list), list}
	for _, dir := range plugins {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		all = append(all, dir)
		for _, entry := range entries {
			if !entry.IsDir() {
				all = append(all, filepath.Join(dir, entry.Name()))
			}
		}
	}
	var problems []error
	for _, path := range all {
		problems = append(problems, rootAlone(path))
	}
	return errors.Join(problems...)
}

func rootAlone(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		// The path is a dangling link.
		return nil
	}
	if err != nil {
		return err
	}
	// In a test, the user takes root's place.
	owner := info.Sys().(*syscall.Stat_t).Uid
	if owner != 0 && owner != uint32(os.Geteuid()) {
		return fmt.Errorf("user %d may write what root runs: chown root %s", owner, path)
	}
	sticky := info.IsDir() && info.Mode()&fs.ModeSticky != 0
	if info.Mode().Perm()&0o022 != 0 && !sticky {
		return fmt.Errorf("others than root may write what root runs: chmod go-w %s", path)
	}
	return nil
}
