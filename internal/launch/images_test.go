package launch

import (
	"bytes"
	"log/slog"
	"regexp"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestLongImportIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		var done atomic.Int32
		stop := reportImport(slog.New(slog.NewTextHandler(&said, nil)), &done, 2)
		time.Sleep(6 * time.Second)
		done.Store(1)
		time.Sleep(10 * time.Second)
		stop()
		time.Sleep(time.Hour)
		if !regexp.MustCompile(`^.* for 5 s: 0 of 2 archives .*\n.* for 15 s: 1 of 2 archives .*\n$`).Match(said.Bytes()) {
			t.Errorf("said %s", said.String())
		}
	})
}
