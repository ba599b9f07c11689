package queue

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// forgotten names the subfolder of Options.State that keeps, for at least forgottenKept, the
// folders of forgotten objects whose jobs may not have ended. Slurm gives a cancelled script the
// time KillWait to end, and a shell reads its script while it runs it. A renamed file stays
// readable on NFS.
const (
	forgotten     = ".forgotten"
	forgottenKept = time.Hour
)

// Forget removes the folder of an object whose job has ended, was cancelled or never started.
// If the job may not have ended, Forget moves the folder, and a later call removes it.
func (c *Client) Forget(uid string) error {
	if !validUID.MatchString(uid) {
		return fmt.Errorf("remove the folder of object %q: this is no UID", uid)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.known[uid]
	delete(c.known, uid)
	folder := Folder(c.options.State, uid)
	if k != nil && (k.final != nil || Ended(k.state(uid).State)) {
		return os.RemoveAll(folder)
	}
	trash := filepath.Join(c.options.State, forgotten)
	kept := filepath.Join(trash, uid)
	if err := errors.Join(os.MkdirAll(trash, 0o700), os.RemoveAll(kept)); err != nil {
		return err
	}
	now := time.Now()
	if err := os.Rename(folder, kept); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Chtimes(kept, now, now)
	return c.removeForgotten(now)
}

// removeForgotten removes folders that were moved more than forgottenKept ago. The caller holds
// c.mu.
func (c *Client) removeForgotten(now time.Time) error {
	if now.Sub(c.removed) < forgottenKept/10 {
		return nil
	}
	c.removed = now
	trash := filepath.Join(c.options.State, forgotten)
	entries, err := os.ReadDir(trash)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil && now.Sub(info.ModTime()) > forgottenKept {
			err = os.RemoveAll(filepath.Join(trash, entry.Name()))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
