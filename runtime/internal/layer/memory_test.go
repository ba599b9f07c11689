package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"berth.dev/berth/runtime/internal/budget"
)

// A conversion keeps about 223 bytes for each file of a layer, so that the largest
// permitted layer, of 4 Mi files, does not exhaust a job's memory.
func TestFilesTakeLittleMemory(t *testing.T) {
	const files, most = 1 << 16, 260
	file, err := os.Create(filepath.Join(t.TempDir(), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	archive, to := io.Pipe()
	defer archive.Close()
	go func() {
		w := tar.NewWriter(to)
		var err error
		for i := 0; i < files && err == nil; i++ {
			err = w.WriteHeader(&tar.Header{Name: fmt.Sprint("dir", i/1000, "/", i), Typeflag: tar.TypeReg})
		}
		to.CloseWithError(errors.Join(err, w.Close()))
	}()
	seen := 0
	var first uint64
	if err := Convert(archive, file, budget.Budget{}.Layer(0), func(*tar.Header) {
		if seen++; seen == 1 {
			first = live()
		}
		if seen < files {
			return
		}
		if each := (live() - first) / files; each > most {
			t.Errorf("each file takes %d bytes of memory, want at most %d", each, most)
		} else {
			t.Logf("each file takes %d bytes of memory", each)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if seen != files {
		t.Errorf("%d files", seen)
	}
}

// live returns the bytes of the heap that are in use.
func live() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
