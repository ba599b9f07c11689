package launch

import (
	"bytes"
	"context"
	"errors"
	"io"
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

// A signal while an archive is imported is acted on at once, however long the import
// still takes.
func TestImportIsNotWaitedForAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signalled := errors.New("signalled")
		ctx, end := context.WithCancelCause(t.Context())
		reader, writer := io.Pipe()
		go func() {
			defer writer.Close()
			_, _ = io.WriteString(writer, `{"archive":"a.tar","error":"damaged"}`+"\n")
			time.Sleep(time.Minute)
			end(signalled)
			time.Sleep(time.Hour)
		}()
		began := time.Now()
		_, err := readImports(ctx, slog.New(slog.DiscardHandler), reader, 2)
		if after := time.Since(began); !errors.Is(err, signalled) || after != time.Minute {
			t.Errorf("%v after %s, want %v after a minute", err, after, signalled)
		}
		time.Sleep(2 * time.Hour) // until nothing writes any more
	})
}
