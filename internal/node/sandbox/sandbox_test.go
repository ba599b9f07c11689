package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A program that is missing or damaged is not taken for a host without user namespaces.
func TestProgramOfJanitorIsBlamed(t *testing.T) {
	dir := t.TempDir()
	damaged, whole := filepath.Join(dir, "damaged"), filepath.Join(dir, "whole")
	for path, mode := range map[string]os.FileMode{damaged: 0o600, whole: 0o700} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		program string
		err     error
		blamed  bool
	}{
		{filepath.Join(dir, "none"), unix.ENOENT, true},
		{whole, unix.ENOEXEC, true},
		{damaged, unix.EACCES, true},
		{whole, unix.EACCES, false}, // SELinux forbids user namespaces so
		{whole, unix.EPERM, false},
		{whole, unix.ENOSPC, false},
	} {
		got := explainStart(test.program, &os.PathError{Op: "fork/exec", Path: test.program, Err: test.err}).Error()
		if strings.Contains(got, "unpack the whole archive") != test.blamed || strings.Contains(got, "user namespace") == test.blamed {
			t.Errorf("%s of %s: %s", test.err, filepath.Base(test.program), got)
		}
	}
}
