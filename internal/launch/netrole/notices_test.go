package netrole

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/notify"
)

func TestWarningIsSentOncePerNode(t *testing.T) {
	var sent bytes.Buffer
	log := slog.New(&noticing{Handler: slog.NewTextHandler(io.Discard, nil), notifier: notify.NewWriter(&sent)})
	for _, queue := range []int{0, 1} {
		log.Warn("UDP does not get through", "node", "n2", "queue", queue)
		log.Info("UDP gets through", "node", "n2", "queue", queue)
	}
	log.Warn("UDP does not get through", "node", "n3")
	var events []string
	err := notify.Read(&sent, func(event notify.Event) { events = append(events, event.Event+" "+event.Name) })
	if err != nil {
		t.Fatal(err)
	}
	want := "notice node n2: UDP does not get through|notice node n3: UDP does not get through"
	if got := strings.Join(events, "|"); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
