package containerlog

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The spool may drop a file at any moment while it is read. The output that
// arrives and the output that is counted as lost add up to the written output.
func TestAFileThatIsDroppedWhileItIsReadIsCounted(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	r.open(0)
	r.write("stdout F lost or not")
	r.rotate(0)
	r.open(0)
	r.write("stdout F kept")
	r.close()
	w, _ := startWatcher(t, r.root)
	awaitSegments(t, w, 2)
	c := w.container("default_pod_uid/main")
	// Under another name, the file can be opened again.
	path := filepath.Join(t.TempDir(), "file")
	if err := os.Rename(r.path("0.log.20260101-000000"), path); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		var out bytes.Buffer
		reader := reader{c: c, out: &out, buffers: &w.buffers, final: true, flush: func() error { return nil }}
		dropped := make(chan struct{})
		go func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.segments[0].drop()
			close(dropped)
		}()
		if err := reader.run(t.Context(), Position{}); err != nil {
			t.Fatal(err)
		}
		<-dropped
		client := &client{t: t, reader: bufio.NewReader(&out), out: map[Kind]*bytes.Buffer{KindStdout: {}, KindStderr: {}}}
		for client.next() != KindEnd {
		}
		got := client.out[KindStdout].String()
		switch {
		case got == "lost or not\nkept\n" && len(client.losses) == 0:
		case got == "kept\n" && len(client.losses) == 1 && client.losses[0] == Loss{Lines: 1, Bytes: 12}:
		default:
			t.Fatalf("got %q, lost %v", got, client.losses)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		s := c.segments[0]
		s.file, s.sent, s.taken, s.lost = file, 0, 0, Loss{}
		c.mu.Unlock()
	}
}
