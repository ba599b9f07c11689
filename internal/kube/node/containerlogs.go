package node

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"reflect"

	"k8s.io/kubernetes/pkg/kubelet"
)

// containerLogsPath is the path on the kubelet's server for the output of
// containers. The API server leads there as a proxy to the node, so the usual
// authentication and authorization of both apply (nodes/log of the node).
const containerLogsPath = "/logs/containers/"

// serveContainerLogs puts the logs of containers in the place of the files of
// the node's /var/log, which the kubelet would serve. The role logs has them, and
// listens at socket.
func serveContainerLogs(k *kubelet.Kubelet, socket string, log *slog.Logger) error {
	field, err := hidden(reflect.ValueOf(k).Elem(), "logServer")
	if err != nil {
		return err
	}
	field.Set(reflect.ValueOf(containerLogs(socket, log)))
	return nil
}

func containerLogs(socket string, log *slog.Logger) http.Handler {
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
	return mux
}
