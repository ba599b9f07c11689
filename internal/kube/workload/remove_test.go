package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/restmapper"
	clienttesting "k8s.io/client-go/testing"

	"berth.dev/berth/internal/base/pki"
)

// podServer knows pods by name and UID. Deleted pods disappear at the next
// request, unless they stay.
type podServer struct {
	mu      sync.Mutex
	pods    map[string]string
	deleted []string
	stays   bool
}

func (s *podServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch name, isPod := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/default/pods/"); {
	case r.URL.Path == "/api":
		fmt.Fprint(w, `{"kind":"APIVersions","versions":["v1"]}`)
	case r.URL.Path == "/apis":
		fmt.Fprint(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
	case r.URL.Path == "/api/v1":
		fmt.Fprint(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","namespaced":true,"kind":"Pod"}]}`)
	case !isPod, s.pods[name] == "":
		s.refuse(w, http.StatusNotFound)
	case r.Method == http.MethodDelete:
		var options metav1.DeleteOptions
		body, err := io.ReadAll(r.Body)
		if err != nil || json.Unmarshal(body, &options) != nil || *options.Preconditions.UID != types.UID(s.pods[name]) {
			s.refuse(w, http.StatusConflict)
			return
		}
		s.deleted = append(s.deleted, name)
		fmt.Fprint(w, `{"kind":"Status","status":"Success"}`)
	default:
		uid := s.pods[name]
		if slices.Contains(s.deleted, name) && !s.stays {
			delete(s.pods, name)
		}
		fmt.Fprintf(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":"default","uid":%q}}`, name, uid)
	}
}

func (s *podServer) refuse(w http.ResponseWriter, code int) {
	reason := map[int]metav1.StatusReason{http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusConflict: metav1.StatusReasonConflict}[code]
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason})
}

func made(name, uid string, created bool) Object {
	o := object("Pod", "default", name, nil)
	o.SetUID(types.UID(uid))
	return Object{Unstructured: o, Created: created}
}

func newPodClient(t *testing.T, s *podServer) *Client {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	client, err := NewClient(pki.Kubeconfig("test", server.URL, nil, pki.Pair{}))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestRemoveDeletesCreatedObjects(t *testing.T) {
	s := &podServer{pods: map[string]string{"first": "1", "second": "2", "found": "3", "again": "5"}}
	client := newPodClient(t, s)
	err := client.Remove(t.Context(), []Object{made("first", "1", true), made("second", "2", true), made("found", "3", false), made("gone", "4", true)})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"second", "first"}; !slices.Equal(s.deleted, want) {
		t.Errorf("deleted %v, want %v", s.deleted, want)
	}
	// Another one of the same name is somebody else's.
	if err := client.Remove(t.Context(), []Object{made("again", "4", true)}); err == nil || len(s.deleted) != 2 {
		t.Errorf("deleted %v, %v", s.deleted, err)
	}
}

func TestRemoveDeletesWithoutWaiting(t *testing.T) {
	s := &podServer{pods: map[string]string{"first": "1", "second": "2"}, stays: true}
	client := newPodClient(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err := client.Remove(ctx, []Object{made("first", "1", true), made("second", "2", true)})
	if err == nil || len(s.deleted) != 2 {
		t.Errorf("deleted %v, %v", s.deleted, err)
	}
}

// A finalizer that nobody removes keeps an object for good.
func TestRemoveDoesNotWaitForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		controller := object("JobSet", "default", "stuck", map[string]any{"spec": map[string]any{"replicatedJobs": []any{
			map[string]any{"template": map[string]any{"spec": map[string]any{"terminationGracePeriodSeconds": int64(100)}}},
		}}})
		controller.SetAPIVersion("jobset.x-k8s.io/v1")
		resource := schema.GroupVersionResource{Group: "jobset.x-k8s.io", Version: "v1", Resource: "jobsets"}
		api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{resource: "JobSetList"}, controller)
		api.PrependReactor("delete", "jobsets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, nil })
		kinds := &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{Resources: []*metav1.APIResourceList{
			{GroupVersion: "jobset.x-k8s.io/v1", APIResources: []metav1.APIResource{{Name: "jobsets", Kind: "JobSet", Namespaced: true}}},
		}}}
		client := &Client{dynamic: api, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds))}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		err := client.Remove(ctx, []Object{{Unstructured: controller, Created: true}})
		if took := time.Since(began); err == nil || took != 100*time.Second+endMargin {
			t.Errorf("waited %s: %v", took, err)
		}
	})
}
