package containerlog

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Query parameters of a request for PATH/POD-DIRECTORY/CONTAINER.
const (
	// FromParam is the JSON of the Position to continue from; the beginning if absent.
	FromParam = "from"
	// FinalParam is set if the container has ended, so that the stream ends with the log.
	FinalParam = "final"
	// EndedParam is set in a request that receives no log. It reports that the container
	// has ended, so that the streams of other requests end with the log.
	EndedParam = "ended"
	// UnwrittenParam is the last Progress.Unwritten that the client has received.
	UnwrittenParam = "unwritten"
)

// ServeHTTP streams the log of one container in frames. Without such a container, the
// stream is one frame of KindUnknown.
func (w *Watcher) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	dir := strings.Trim(request.URL.Path, "/")
	if !filepath.IsLocal(dir) || depthOf(dir) != 2 || strings.Count(dir, "/") != 1 {
		http.Error(answer, "the path has to be POD-DIRECTORY/CONTAINER", http.StatusBadRequest)
		return
	}
	var from Position
	if text := request.FormValue(FromParam); text != "" {
		if err := json.Unmarshal([]byte(text), &from); err != nil {
			http.Error(answer, "decode the position: "+err.Error(), http.StatusBadRequest)
			return
		}
	}
	known, _ := strconv.ParseInt(request.FormValue(UnwrittenParam), 10, 64) // 0 where absent
	w.mu.Lock()
	c := w.containers[dir]
	w.mu.Unlock()
	if request.FormValue(EndedParam) != "" {
		if c == nil {
			http.Error(answer, "there is no log of this container", http.StatusNotFound)
			return
		}
		c.end()
		return
	}
	if c == nil {
		// The directory may be newer than the last inotify event.
		info, err := w.root.Stat(dir)
		if err := unlessGone(err); err != nil {
			http.Error(answer, err.Error(), http.StatusServiceUnavailable)
			return
		}
		if err != nil || !info.IsDir() {
			_ = Frame{Kind: KindUnknown}.Write(answer)
			return
		}
		w.enter(filepath.Dir(dir), 1, false)
		c = w.container(dir)
	}
	answer.Header().Set("Content-Type", "application/octet-stream")
	out := bufio.NewWriterSize(answer, 4<<10)
	control := http.NewResponseController(answer)
	r := reader{c: c, out: out, buffers: &w.buffers, final: request.FormValue(FinalParam) != "", unwritten: known, flush: func() error {
		if err := out.Flush(); err != nil {
			return err
		}
		return control.Flush()
	}}
	if w.Unwritten != "" {
		r.unwrittenFile = filepath.Join(w.Unwritten, dir)
	}
	// On an error, the client notices that the stream ends without KindEnd.
	_ = r.run(request.Context(), from)
}

// Serve serves the logs on a listener until ctx ends, and returns nil then. It returns
// early if the listener fails.
func (w *Watcher) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: w, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) || ctx.Err() != nil {
		return nil
	}
	return err
}
