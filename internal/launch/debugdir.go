package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/node/sandbox"
)

// debugDir is a directory of the user that keeps the logs of roles and pods, the
// plan, and the configuration made from it. It contains no keys. An empty
// debugDir keeps nothing.
type debugDir string

// open creates the directory. Other users cannot read it, since logs reveal the
// workload.
func (d debugDir) open() error {
	if d == "" {
		return nil
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("make debug directory: %w", err)
	}
	if err := os.Chmod(string(d), 0o700); err != nil {
		return fmt.Errorf("close debug directory to others: %w", err)
	}
	for _, name := range []string{"log", "config"} {
		if err := os.Mkdir(filepath.Join(string(d), name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make debug directory: %w", err)
		}
	}
	return nil
}

// keepConfig writes the sandbox's files, except keys and kubeconfigs.
func (d debugDir) keepConfig(files map[string]sandbox.File) error {
	if d == "" {
		return nil
	}
	for path, file := range files {
		if file.Mode&0o077 == 0 {
			continue // keys and kubeconfigs are for their owner only
		}
		target := filepath.Join(string(d), "config", strings.ReplaceAll(strings.TrimPrefix(path, runPath+"/"), "/", "_"))
		if err := os.WriteFile(target, file.Content, 0o600); err != nil {
			return fmt.Errorf("keep configuration: %w", err)
		}
	}
	return nil
}

// keepPodLogs copies the logs of pods before the run's directory is removed.
func (d debugDir) keepPodLogs(source string) error {
	if d == "" {
		return nil
	}
	target := filepath.Join(string(d), "pod-logs")
	if err := os.RemoveAll(target); err != nil { // of an earlier run
		return err
	}
	if err := os.CopyFS(target, os.DirFS(source)); err != nil {
		return fmt.Errorf("keep the logs of pods: %w", err)
	}
	return nil
}
