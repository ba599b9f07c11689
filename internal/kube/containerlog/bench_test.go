package containerlog

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"log/slog"
)

// BenchmarkShortLines serves a log of a million lines of 7 bytes.
func BenchmarkShortLines(b *testing.B) {
	root := b.TempDir()
	dir := filepath.Join(root, "default_pod_uid", "main")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	file, err := os.Create(filepath.Join(dir, "0.log"))
	if err != nil {
		b.Fatal(err)
	}
	const count = 1_000_000
	text := bufio.NewWriter(file)
	for i := range count {
		fmt.Fprintf(text, "%s stdout F %07d\n", time.Unix(1e9, int64(i)).UTC().Format(time.RFC3339Nano), i)
	}
	if err := text.Flush(); err != nil {
		b.Fatal(err)
	}
	file.Close()
	w, err := NewWatcher(root, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer w.close()
	server := httptest.NewServer(w)
	defer server.Close()
	for b.Loop() {
		answer, err := http.Get(server.URL + "/default_pod_uid/main?" + FinalParam + "=true")
		if err != nil {
			b.Fatal(err)
		}
		reader := bufio.NewReaderSize(answer.Body, 64<<10)
		received := 0
		for kind := KindAlive; kind != KindEnd; {
			frame, err := ReadFrame(reader)
			if err != nil {
				b.Fatal(err)
			}
			if kind = frame.Kind; kind == KindStdout {
				received += len(frame.Data)
			}
		}
		answer.Body.Close()
		if received != 8*count {
			b.Fatalf("received %d bytes", received)
		}
	}
	b.ReportMetric(count*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
