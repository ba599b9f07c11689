package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// apiServer answers lists of nodes with an empty list, and counts requests.
func apiServer(t *testing.T) (kubeconfig string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{},"items":[]}`)
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, asked
}

func TestRequestsWaitAtGate(t *testing.T) {
	kubeconfig, asked := apiServer(t)
	a, err := newAccess(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := a.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		done <- err
	}()

	attempts := 0
	err = a.open(t.Context(), func(ctx context.Context, early kubernetes.Interface) error {
		if attempts++; attempts < 3 {
			return errors.New("not yet")
		}
		if n := asked.Load(); n != 0 {
			t.Errorf("%d requests passed the closed gate", n)
		}
		_, err := early.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	})
	if err != nil || attempts != 3 {
		t.Fatalf("open: %v after %d attempts", err, attempts)
	}
	if err := <-done; err != nil {
		t.Errorf("the request that waited: %v", err)
	}
	if !a.opened(t.Context()) {
		t.Error("the gate is not open")
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("the server was asked %d times", n)
	}
}

func TestWaitEndsWithContext(t *testing.T) {
	kubeconfig, asked := apiServer(t)
	a, err := newAccess(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("told to stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, err := a.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("request: %v", err)
	}
	err = a.open(ctx, func(context.Context, kubernetes.Interface) error { return errors.New("refused") })
	if !errors.Is(err, stop) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("open: %v", err)
	}
	if a.opened(ctx) {
		t.Error("the gate is open")
	}
	if asked.Load() != 0 {
		t.Error("a request passed")
	}
}

func TestAccessNamesTheKubeconfig(t *testing.T) {
	if _, err := newAccess("/absent/kubeconfig"); err == nil || !strings.Contains(err.Error(), "/absent/kubeconfig") {
		t.Errorf("error is %v", err)
	}
}
