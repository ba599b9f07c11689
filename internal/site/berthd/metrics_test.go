package berthd

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil"
)

func TestMetricsFormat(t *testing.T) {
	m := &metrics{pods: func() (jobs, sessions int) { return 3, 1 }}
	m.etcdUp.Store(true)
	for _, took := range []time.Duration{5 * time.Millisecond, 25 * time.Millisecond, 30 * time.Millisecond, time.Minute} {
		m.attached(took)
	}
	m.refuse()
	m.fail()
	m.fail()
	var text strings.Builder
	if err := m.write(&text); err != nil {
		t.Fatal(err)
	}
	testutil.Golden(t, "metrics.txt", text.String())
}

// A user who has the port does not end the daemon: metrics are served when the port
// is free.
func TestMetricsWaitForTheirPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := taken.Addr().String()
	said := make(chan string, 10)
	m := &metrics{pods: func() (jobs, sessions int) { return 0, 0 }, log: slog.New(slog.NewTextHandler(logLines(said), nil))}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.serve(ctx, address) }()
	if line := <-said; !strings.Contains(line, "address already in use") {
		t.Errorf("log: %s", line)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "metrics when the port is free", func() bool {
		response, err := http.Get("http://" + address + "/metrics")
		if err == nil {
			response.Body.Close()
		}
		return err == nil
	})
	cancel()
	if err := <-ended; err != nil || len(said) > 0 {
		t.Errorf("%v, and %d more lines in the log", err, len(said))
	}
}

// logLines is a log that sends each line to the channel.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}
