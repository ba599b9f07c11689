package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"reflect"

	"k8s.io/kubernetes/pkg/kubelet"
)

// containerLogsPath is the path on the kubelet's server for the output of
// containers. Clients reach it by the API server's proxy to the node, so the usual
// authentication and authorization of both apply (nodes/log of the node).
const containerLogsPath = "/logs/containers/"

// unwrittenPath is the path for the number of bytes that could not be written to the
// log of a container. The kubelet serves it itself, even if the log role is absent.
const unwrittenPath = "/logs/unwritten/"

// serveContainerLogs makes the kubelet serve the logs of containers instead of the files in
// the node's /var/log. It proxies requests to the log role, which listens at socket.
// unwritten is the directory of the counts of unwritten bytes. It returns an error if the
// kubelet has no such field.
func serveContainerLogs(k *kubelet.Kubelet, socket, unwritten string, log *slog.Logger) error {
	field, err := hidden(reflect.ValueOf(k).Elem(), "logServer")
	if err != nil {
		return err
	}
	field.Set(reflect.ValueOf(containerLogs(socket, unwritten, log)))
	return nil
}

func containerLogs(socket, unwritten string, log *slog.Logger) http.Handler {
	var dialer net.Dialer
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "logs"}) },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", socket)
			},
			MaxIdleConnsPerHost: 16,
		},
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+containerLogsPath, http.StripPrefix(containerLogsPath, proxy))
	mux.Handle("GET "+unwrittenPath, http.StripPrefix(unwrittenPath, countUnwritten(unwritten)))
	return mux
}

// countUnwritten answers with the length of a file below dir. A log without a file was
// written as a whole.
func countUnwritten(dir string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !filepath.IsLocal(r.URL.Path) {
			http.Error(w, "the path has to be POD-DIRECTORY/CONTAINER", http.StatusBadRequest)
			return
		}
		count := int64(0)
		info, err := os.Stat(filepath.Join(dir, r.URL.Path))
		switch {
		case err == nil:
			count = info.Size()
		case !errors.Is(err, os.ErrNotExist):
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, count)
	})
}
