package crilog

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Both streams of a container add to one count, in each of its runs.
func TestRunsAndStreamsShareACount(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "counts")
	var group sync.WaitGroup
	for _, log := range []string{"/logs/default_p_u/main/0.log", "/logs/default_p_u/main/0.log", "/logs/default_p_u/main/1.log", "/logs/default_p_u/other/0.log"} {
		group.Go(func() {
			count := NewCount(dir, log)
			for range 100 {
				if err := count.Add(7); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	for container, want := range map[string]int64{"main": 2100, "other": 700} {
		info, err := os.Stat(filepath.Join(dir, "default_p_u", container))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() != want {
			t.Errorf("%d bytes of %s, want %d", info.Size(), container, want)
		}
	}
	if err := NewCount("", "/logs/default_p_u/main/0.log").Add(7); err != nil {
		t.Error(err)
	}
}
