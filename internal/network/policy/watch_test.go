package policy

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"berth.dev/berth/internal/testutil"
)

// fakeAPI serves empty lists, and sends to watches the events that a test passes.
type fakeAPI struct {
	mu       sync.Mutex
	watching map[string]chan<- any // by resource
	silent   string                // a resource whose list never comes
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	kinds := map[string]metav1.TypeMeta{
		"pods":            {Kind: "PodList", APIVersion: "v1"},
		"namespaces":      {Kind: "NamespaceList", APIVersion: "v1"},
		"networkpolicies": {Kind: "NetworkPolicyList", APIVersion: "networking.k8s.io/v1"},
	}
	encoder := json.NewEncoder(w)
	if r.URL.Query().Get("watch") == "" {
		f.mu.Lock()
		silent := f.silent == resource
		f.mu.Unlock()
		if silent {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = encoder.Encode(metav1.List{TypeMeta: kinds[resource], ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
		return
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		http.Error(w, "this server lists", http.StatusBadRequest)
		return
	}
	events := make(chan any)
	f.mu.Lock()
	f.watching[resource] = events
	f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	for {
		select {
		case event := <-events:
			_ = encoder.Encode(event)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			f.mu.Lock()
			delete(f.watching, resource)
			f.mu.Unlock()
			return
		}
	}
}

func (f *fakeAPI) watched(resource string) chan<- any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watching[resource]
}

// send sends an event to whoever watches a resource.
func (f *fakeAPI) send(t *testing.T, resource string, kind watch.EventType, object runtime.Object) {
	t.Helper()
	testutil.Eventually(t, resource+" are watched", func() bool { return f.watched(resource) != nil })
	f.watched(resource) <- map[string]any{"type": kind, "object": object}
}

type watching struct {
	*fakeAPI
	hints Hints

	mu     sync.Mutex
	states []*State
	fail   error
}

func startWatching(t *testing.T) *watching {
	w := &watching{fakeAPI: &fakeAPI{watching: map[string]chan<- any{}}}
	server := httptest.NewServer(w.fakeAPI)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Watch(ctx, Config{Core: client.CoreV1().RESTClient(), Networking: client.NetworkingV1().RESTClient(), Hints: &w.hints}, w.take)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		testutil.Eventually(t, "nothing is watched", func() bool {
			w.fakeAPI.mu.Lock()
			defer w.fakeAPI.mu.Unlock()
			return len(w.watching) == 0
		})
		server.Close()
	})
	return w
}

func (w *watching) take(s *State) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states = append(w.states, s)
	return w.fail
}

func (w *watching) last() *State {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.states) == 0 {
		return nil
	}
	return w.states[len(w.states)-1]
}

func examplePolicy() *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{Kind: "NetworkPolicy", APIVersion: "networking.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "deny", ResourceVersion: "2"},
	}
}

func examplePod() *corev1.Pod {
	p := podOf("x", "a", xa)
	p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	p.UID, p.ResourceVersion = "uid-a", "3"
	return p
}

// isolates reports whether a state isolates the example's pod.
func isolates(s *State) bool {
	return s != nil && s.Pods[netip.MustParseAddr(xa)].Ingress != nil
}

func TestPodsAreWatchedWhileThereArePolicies(t *testing.T) {
	w := startWatching(t)
	testutil.Eventually(t, "a first state", func() bool { return w.last() != nil })
	if !w.last().None() || w.watched("pods") != nil || w.watched("namespaces") != nil {
		t.Fatalf("without policies the state is %+v, pods are watched: %t", w.last(), w.watched("pods") != nil)
	}
	w.send(t, "networkpolicies", watch.Added, examplePolicy())
	w.send(t, "pods", watch.Added, examplePod())
	testutil.Eventually(t, "the pod is isolated", func() bool { return isolates(w.last()) })
	w.send(t, "networkpolicies", watch.Deleted, examplePolicy())
	testutil.Eventually(t, "pods are not watched any more", func() bool {
		return w.last().None() && w.watched("pods") == nil && w.watched("namespaces") == nil
	})
	w.send(t, "networkpolicies", watch.Added, examplePolicy())
	w.send(t, "pods", watch.Added, examplePod())
	testutil.Eventually(t, "the pod is isolated again", func() bool { return isolates(w.last()) })
}

func TestStateIsPendingUntilComplete(t *testing.T) {
	w := startWatching(t)
	w.fakeAPI.mu.Lock()
	w.silent = "namespaces"
	w.fakeAPI.mu.Unlock()
	w.send(t, "networkpolicies", watch.Added, examplePolicy())
	w.send(t, "pods", watch.Added, examplePod())
	testutil.Eventually(t, "a state that is pending", func() bool { return w.last() != nil && w.last().Pending })
	if isolates(w.last()) {
		t.Error("a state was made without namespaces")
	}
}

func TestHintsCountUntilThePodIsDeleted(t *testing.T) {
	w := startWatching(t)
	w.send(t, "networkpolicies", watch.Added, examplePolicy())
	bare := examplePod()
	bare.Status.PodIPs = nil
	w.send(t, "pods", watch.Added, bare)
	testutil.Eventually(t, "a state without the pod", func() bool { return w.last() != nil && !w.last().Pending })
	w.hints.Give("uid-a", []netip.Addr{netip.MustParseAddr(xa)})
	testutil.Eventually(t, "the pod is isolated", func() bool { return isolates(w.last()) })
	w.send(t, "pods", watch.Deleted, bare)
	testutil.Eventually(t, "the hint is forgotten", func() bool {
		w.hints.mu.Lock()
		defer w.hints.mu.Unlock()
		return len(w.hints.addresses) == 0 && !isolates(w.last())
	})
}

func TestUntakenStateIsHandedOverAgain(t *testing.T) {
	w := startWatching(t)
	w.mu.Lock()
	w.fail = errors.New("not now")
	w.mu.Unlock()
	w.send(t, "networkpolicies", watch.Added, examplePolicy())
	w.send(t, "pods", watch.Added, examplePod())
	testutil.Eventually(t, "three attempts with the pod isolated", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		same := 0
		for _, s := range w.states {
			if isolates(s) {
				same++
			}
		}
		return same >= 3
	})
}
