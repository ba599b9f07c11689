package node

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// The kubelet knows how much could not be written, though nobody listens at the socket.
func TestUnwrittenOutputIsKnownWithoutTheRole(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "default_p_u"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "default_p_u", "main"), make([]byte, 700), 0o644); err != nil {
		t.Fatal(err)
	}
	logs := containerLogs(filepath.Join(dir, "socket"), dir, slog.New(slog.DiscardHandler))
	for path, want := range map[string]struct {
		code int
		text string
	}{
		unwrittenPath + "default_p_u/main":     {http.StatusOK, "700"},
		unwrittenPath + "default_p_u/other":    {http.StatusOK, "0"},
		containerLogsPath + "default_p_u/main": {http.StatusBadGateway, ""},
		"/logs/messages":                       {http.StatusNotFound, "404 page not found\n"},
	} {
		answer := httptest.NewRecorder()
		logs.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		if answer.Code != want.code || answer.Body.String() != want.text {
			t.Errorf("%s: %d %q, want %d %q", path, answer.Code, answer.Body, want.code, want.text)
		}
	}
}
