package members

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestLossesAreReportedOnce(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	var l losses
	l.report(log, "n1", "n2")
	l.add("n2", "lost node n2")
	l.add("n3", "lost node n3")
	l.report(log, "n2")
	l.report(log, "n1", "n2", "n3")
	if got := strings.Count(out.String(), "n2"); got != 1 {
		t.Errorf("n2 is reported %d times:\n%s", got, &out)
	}
	if got := strings.Count(out.String(), "level=WARN"); got != 2 {
		t.Errorf("%d reports:\n%s", got, &out)
	}
}
