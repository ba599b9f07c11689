package testutil

import (
	"io"
	"log/slog"
	"strings"
)

// OnError returns a log that calls then for each logged error whose text contains words. It
// lets a test end a loop of attempts after the awaited one.
func OnError(words string, then func()) *slog.Logger {
	return slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if err, ok := a.Value.Any().(error); ok && strings.Contains(err.Error(), words) {
				then()
			}
			return a
		},
	}))
}
