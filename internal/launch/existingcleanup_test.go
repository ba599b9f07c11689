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

// ownerServer is an API server that has only the owner of a run. It aborts the first requests
// to delete the owner.
type ownerServer struct {
	aborts  atomic.Int64 // requests still to be aborted
	deleted chan struct{}
}

func (s *ownerServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method != http.MethodDelete:
		fmt.Fprint(w, `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"owner","namespace":"mine","uid":"u"}}`)
	case s.aborts.Add(-1) >= 0:
		panic(http.ErrAbortHandler)
	default:
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Success"}`)
		close(s.deleted)
	}
}

// The API server may be unavailable when a run ends. The run tries again within its patience,
// and after that its cleaner does.
func TestOwnerIsDeletedWhenTheAPIServerReturns(t *testing.T) {
	for name, test := range map[string]struct {
		aborts   int64
		patience time.Duration
		said     string
	}{
		"soon":  {1, time.Minute, ""},
		"later": {2, 0, "the cluster does so at 2026-11-28 12:00:00"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &ownerServer{deleted: make(chan struct{})}
			s.aborts.Store(test.aborts)
			server := httptest.NewServer(s)
			defer server.Close()
			kubeconfig := fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
				"clusters": [{"name": "c", "cluster": {"server": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c"}}]}`, server.URL)
			client, err := workload.NewClient(kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			r := &existingRun{owner: &existing.Owner{Namespace: "mine", Name: "owner", UID: "u"}, expires: time.Date(2026, 11, 28, 12, 0, 0, 0, time.Local)}
			r.Log, r.client = slog.New(slog.DiscardHandler), client
			cleaner, err := startCleaner(kubeconfig, r.owner)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err = r.leave(ctx, cleaner, test.patience)
			if test.said == "" && err != nil || test.said != "" && (err == nil || !strings.Contains(err.Error(), test.said)) {
				t.Errorf("got %v, want %q", err, test.said)
			}
			select {
			case <-s.deleted:
			case <-ctx.Done():
				t.Error("the owner was not deleted")
			}
			if test.said != "" { // otherwise end has waited for the cleaner
				_ = cleaner.process.Wait()
			}
		})
	}
}
