package workload

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// killedServer returns a client of an API server that dies while it creates an object:
// the first request to create it breaks off, and the next one finds that it exists.
func killedServer(t *testing.T) *Client {
	t.Helper()
	created := map[string]bool{}
	mux := http.NewServeMux()
	answer := func(pattern, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
		})
	}
	answer("GET /api", `{"kind": "APIVersions", "versions": ["v1"]}`)
	answer("GET /apis", `{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`)
	answer("GET /api/v1", `{"kind": "APIResourceList", "groupVersion": "v1", "resources": [
		{"name": "configmaps", "namespaced": true, "kind": "ConfigMap", "verbs": ["create", "patch"]}]}`)
	answer("PATCH /api/v1/namespaces/default/configmaps/settings",
		`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "uid": "u1"}}`)
	mux.HandleFunc("POST /api/v1/namespaces/default/configmaps", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !created[string(body)] {
			created[string(body)] = true
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "AlreadyExists", "code": 409}`)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	client, err := NewClient(fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c"}}]}`, server.URL))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func configMap(metadata map[string]any) Object {
	return Object{Unstructured: &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
	}}, Source: "test.yaml"}
}

func TestApplyOutlivesTheAPIServer(t *testing.T) {
	client := killedServer(t)
	applied, err := client.Apply(t.Context(), []Object{configMap(map[string]any{"name": "settings"})})
	if err != nil {
		t.Fatal(err)
	}
	if uid := applied[0].GetUID(); uid != "u1" {
		t.Errorf("applied an object with the uid %q", uid)
	}
}

// The client cannot know whether the object was created, or under which name.
func TestGeneratedNameIsNotAppliedTwice(t *testing.T) {
	client := killedServer(t)
	if _, err := client.Apply(t.Context(), []Object{configMap(map[string]any{"generateName": "settings-"})}); !unanswered(err) {
		t.Errorf("got %v, want a request without an answer", err)
	}
}
