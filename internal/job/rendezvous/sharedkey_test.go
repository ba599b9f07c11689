package rendezvous

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestSharedKey(t *testing.T) {
	folder := t.TempDir()
	step := Step{Cluster: "c", Job: "12", Joining: true}
	found := make(chan []byte)
	go func() {
		key, err := ReadKey(within(t, long), folder, step)
		if err != nil {
			t.Error(err)
		}
		found <- key
	}()
	key, remove, err := WriteKey(folder, step)
	if err != nil {
		t.Fatal(err)
	}
	if read := <-found; !bytes.Equal(read, key) {
		t.Errorf("read %x, written %x", read, key)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, other := range []Step{{Cluster: "c", Job: "12", Joining: true, Attempt: 1}, {Cluster: "c", Job: "12", Joining: true, Step: 1}} {
		_, err := ReadKey(ended, folder, other)
		wantWords(t, err, "wait for the key of the cluster")
	}
	below, err := filepath.Glob(folder + "/*/key")
	if err != nil || len(below) != 1 {
		t.Fatalf("keys %v, %v", below, err)
	}
	if err := os.Chmod(below[0], 0o640); err != nil {
		t.Fatal(err)
	}
	_, err = ReadKey(within(t, time.Second), folder, step)
	wantWords(t, err, "may be read by others")
	remove()
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A node that gives up, at whatever moment, leaves the folder to the head.
func TestNodeThatGivesUpLeavesFolder(t *testing.T) {
	folder := t.TempDir()
	step := Step{Cluster: "c", Job: "12", Joining: true}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	giveUp := func(want int) {
		t.Helper()
		_, err := ReadKey(ended, folder, step)
		wantWords(t, err, "wait for the key of the cluster")
		if left, err := os.ReadDir(folder); err != nil || len(left) != want {
			t.Errorf("the folder has %v, %v, want %d entries", left, err, want)
		}
	}
	giveUp(0)
	head, err := OpenFolder(folder, step) // and the key follows
	if err != nil {
		t.Fatal(err)
	}
	defer head.Close()
	giveUp(1)
}
