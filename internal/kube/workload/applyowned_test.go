package workload

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// takenName is an API server with an object that has the name of a new one. It refuses the
// given number of attempts to create the new one.
type takenName struct {
	metadata string
	attempts int64
	job      string // metadata of the only Job, or empty
	creates  atomic.Int64
}

func (s *takenName) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	refuse := func(code int, reason string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
	}
	switch {
	case r.URL.Path == "/api":
		_, _ = io.WriteString(w, `{"kind":"APIVersions","versions":["v1"]}`)
	case r.URL.Path == "/apis":
		_, _ = io.WriteString(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
	case r.URL.Path == "/api/v1":
		_, _ = io.WriteString(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"configmaps","namespaced":true,"kind":"ConfigMap"}]}`)
	case strings.Contains(r.URL.Path, "/jobs/"):
		if s.job == "" {
			refuse(http.StatusNotFound, "NotFound")
			return
		}
		fmt.Fprintf(w, `{"apiVersion":"batch/v1","kind":"Job","metadata":%s}`, s.job)
	case r.Method == http.MethodPost && s.creates.Add(1) <= s.attempts:
		refuse(http.StatusConflict, "AlreadyExists")
	case r.Method == http.MethodPost:
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings","uid":"new"}}`)
	case s.metadata == "":
		refuse(http.StatusNotFound, "NotFound")
	default:
		fmt.Fprintf(w, `{"apiVersion":"v1","kind":"ConfigMap","metadata":%s}`, s.metadata)
	}
}

// A run that starts soon after another run was killed finds objects that are being deleted.
// Objects that others use must stay.
func TestApplyAwaitsWhatIsBeingDeleted(t *testing.T) {
	const owned = `{"name":"settings","uid":"old","ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"berth-7-x","uid":"j1"}]}`
	for name, test := range map[string]struct {
		server *takenName
		uid    string // of the applied object, or empty for an error
		said   string
	}{
		"this run's":           {&takenName{metadata: strings.ReplaceAll(owned, "j1", "me"), attempts: 1}, "old", ""},
		"gone meanwhile":       {&takenName{attempts: 2}, "new", ""},
		"being deleted":        {&takenName{metadata: `{"name":"settings","uid":"old","deletionTimestamp":"2026-11-28T12:00:00Z"}`, attempts: 2}, "new", ""},
		"the owner is gone":    {&takenName{metadata: owned, attempts: 2}, "new", ""},
		"the owner is another": {&takenName{metadata: owned, attempts: 2, job: `{"name":"berth-7-x","uid":"j2"}`}, "new", ""},
		"the owner is leaving": {&takenName{metadata: owned, attempts: 2, job: `{"name":"berth-7-x","uid":"j1","deletionTimestamp":"2026-11-28T12:00:00Z"}`}, "new", ""},
		"another run's":        {&takenName{metadata: owned, attempts: 2, job: `{"name":"berth-7-x","uid":"j1"}`}, "", "belongs to Job berth-7-x"},
		"nobody's":             {&takenName{metadata: `{"name":"settings","uid":"old"}`, attempts: 2}, "", "kubectl delete configmap settings"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.server)
			defer server.Close()
			client := testClient(t, server.URL)
			client.Own("me")
			applied, err := client.Apply(t.Context(), []Object{configMap(map[string]any{"name": "settings"})})
			if test.uid != "" {
				if err != nil || string(applied[0].GetUID()) != test.uid {
					t.Errorf("got %v, %v, want the object %s", applied, err, test.uid)
				}
				return
			}
			if err == nil || errors.Is(err, errBeingDeleted) || !strings.Contains(err.Error(), test.said) || !strings.Contains(err.Error(), "metadata.generateName") {
				t.Fatalf("got %v, want %q", err, test.said)
			}
			if advised := strings.Contains(err.Error(), "kubectl delete"); advised != (name == "nobody's") {
				t.Errorf("deletion is advised: %v", err)
			}
		})
	}
}
