package launch

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth.dev/berth/internal/kube/existing"
	"berth.dev/berth/internal/kube/workload"
)

// ownerServer is an API server that knows only the owner of a run. It breaks off the first
// requests to delete it, as many as away says.
type ownerServer struct {
	away    atomic.Int64
	deleted chan struct{}
}

func (s *ownerServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method != http.MethodDelete:
		fmt.Fprint(w, `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"owner","namespace":"mine","uid":"u"}}`)
	case s.away.Add(-1) >= 0:
		panic(http.ErrAbortHandler)
	default:
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Success"}`)
		close(s.deleted)
	}
}

// The API server may be away when a run ends. Within its own patience the run tries again, and
// then its keeper does.
func TestOwnerIsDeletedWhenTheAPIServerReturns(t *testing.T) {
	for name, test := range map[string]struct {
		away     int64
		patience time.Duration
		said     string
	}{
		"soon":  {1, time.Minute, ""},
		"later": {2, 0, "the cluster does so at 2026-11-28 12:00:00"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &ownerServer{deleted: make(chan struct{})}
			s.away.Store(test.away)
			server := httptest.NewServer(s)
			defer server.Close()
			kubeconfig := fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
				"clusters": [{"name": "c", "cluster": {"server": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c"}}]}`, server.URL)
			client, err := workload.NewClient(kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			g := &guest{owner: &existing.Owner{Namespace: "mine", Name: "owner", UID: "u"}, expires: time.Date(2026, 11, 28, 12, 0, 0, 0, time.Local)}
			g.Log, g.client = slog.New(slog.DiscardHandler), client
			keeper, err := startKeeper(kubeconfig, g.owner)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err = g.leave(ctx, keeper, test.patience)
			if test.said == "" && err != nil || test.said != "" && (err == nil || !strings.Contains(err.Error(), test.said)) {
				t.Errorf("got %v, want %q", err, test.said)
			}
			select {
			case <-s.deleted:
			case <-ctx.Done():
				t.Error("the owner was not deleted")
			}
			if test.said != "" { // end has waited for it otherwise
				_ = keeper.process.Wait()
			}
		})
	}
}
