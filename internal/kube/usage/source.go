package usage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
)

// askLimit bounds one request to a kubelet, so that a kubelet that hangs does not delay
// the answers of the others for long.
const askLimit = 5 * time.Second

// source holds the latest samples of the nodes.
type source struct {
	connections kubeletclient.ConnectionInfoGetter

	mu    sync.Mutex
	nodes map[types.UID]*history
}

// readings holds two samples of one node, or the error of its kubelet.
type readings struct {
	base, newest *sample
	err          error
}

// read requests samples from the kubelets of nodes in parallel, and returns the readings in
// the order of the nodes. A node that is not ready has an error.
func (s *source) read(ctx context.Context, nodes []*corev1.Node) []readings {
	all := make([]readings, len(nodes))
	var asking sync.WaitGroup
	for i, node := range nodes {
		if !ready(node) {
			all[i].err = errors.New("the node is not ready")
			continue
		}
		h := s.history(node)
		asking.Go(func() {
			r := &all[i]
			r.base, r.newest, r.err = h.pair(ctx)
		})
	}
	asking.Wait()
	return all
}

func (s *source) history(node *corev1.Node) *history {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.nodes[node.UID]
	if h == nil {
		name := types.NodeName(node.Name)
		h = &history{
			ask: func(ctx context.Context) (*sample, error) { return s.ask(ctx, name) },
			now: time.Now,
			pause: func(ctx context.Context, d time.Duration) {
				select {
				case <-time.After(d):
				case <-ctx.Done():
				}
			},
		}
		s.nodes[node.UID] = h
	}
	return h
}

// forget drops the histories of nodes that are not present any more.
func (s *source) forget(present []*corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.nodes) <= len(present) {
		return
	}
	kept := map[types.UID]*history{}
	for _, node := range present {
		if h := s.nodes[node.UID]; h != nil {
			kept[node.UID] = h
		}
	}
	s.nodes = kept
}

func (s *source) ask(ctx context.Context, node types.NodeName) (*sample, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	connection, err := s.connections.GetConnectionInfo(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("find the kubelet of node %s: %w", node, err)
	}
	at := url.URL{Scheme: connection.Scheme, Host: connection.Hostname + ":" + connection.Port, Path: "/metrics/resource"}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet of node %s: %w", node, err)
	}
	client := http.Client{Transport: connection.Transport}
	answer, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet of node %s: %w", node, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the kubelet of node %s: %s", node, answer.Status)
	}
	return readSample(answer.Body, time.Now())
}

func ready(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
