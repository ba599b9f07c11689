package joblog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOutputFile reads a file that a job writes, with bytes that are no text.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	write := func(mode int, text string) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|mode, 0o600)
		if err == nil {
			_, err = file.WriteString(text)
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	remove := func() {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	large := strings.Repeat("0123456789abcdef", 1<<17)
	output := File{Path: path}
	for i, step := range []struct {
		change  func()
		want    string
		missing bool
	}{
		{func() {}, "", true}, // the job has not started
		{func() { write(os.O_APPEND, "one\xff\x00\n") }, "one\xff\x00\n", false},
		{func() {}, "", false},
		{func() { write(os.O_APPEND, large) }, large, false},
		{func() { write(os.O_TRUNC, "requeued\n") }, "requeued\n", false},
		{func() { write(os.O_APPEND, "more\n") }, "more\n", false},
		{func() { write(os.O_TRUNC, "requeued, with more output\n") }, "requeued, with more output\n", false},
		{remove, "", true},
		{func() { write(os.O_APPEND, "requeued again\n") }, "requeued again\n", false},
		{func() { // a larger file in its place
			if err := os.Rename(path, path+".old"); err != nil {
				t.Fatal(err)
			}
			write(os.O_APPEND, "another and larger file\n")
		}, "another and larger file\n", false},
	} {
		step.change()
		var got bytes.Buffer
		missing, err := output.Copy(t.Context(), &got)
		if err != nil || got.String() != step.want || (missing != nil) != step.missing || missing != nil && !errors.Is(missing, os.ErrNotExist) {
			t.Errorf("step %d: got %.40q, missing %v, %v", i, &got, missing, err)
		}
	}
	if !output.Found {
		t.Error("the file was not found")
	}
	remove()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := output.Copy(t.Context(), &bytes.Buffer{}); err == nil {
		t.Error("read a pipe")
	}
}
