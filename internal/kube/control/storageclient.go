package control

import (
	_ "unsafe" // for go:linkname

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	_ "k8s.io/apiserver/pkg/storage/storagebackend/factory" // the linkname's target
)

// newStorageClient opens the etcd clients of kube-apiserver, one per resource. It
// is the only place that reaches all of them, and upstream keeps it in an
// unexported variable. Two alternatives were rejected: gRPC over an in-memory
// connection (EgressLookup reaches the dialer, but each of about a hundred clients
// then costs a handshake, a dozen goroutines and a copy of every message), and our
// own decorators for the storage of each resource (a copy of upstream's cacher
// set-up that would have to follow upstream).
//
//go:linkname newStorageClient k8s.io/apiserver/pkg/storage/storagebackend/factory.newETCD3Client
var newStorageClient func(storagebackend.TransportConfig) (*kubernetes.Client, error)

// serveStorageFrom makes kube-apiserver of this process use the store, without
// any connection. Clients that are opened before the store is up wait for it.
func serveStorageFrom(s *store) {
	newStorageClient = func(storagebackend.TransportConfig) (*kubernetes.Client, error) {
		client, err := s.client()
		if err != nil {
			return nil, err
		}
		kubeClient := &kubernetes.Client{Client: client}
		kubeClient.Kubernetes = kubeClient
		return kubeClient, nil
	}
	feature.DefaultFeatureSupportChecker = etcdFeatures{feature.DefaultFeatureSupportChecker}
}

// etcdFeatures reports which features etcd has. Upstream asks each endpoint of
// a client for its version. Clients in this process have no endpoints, so
// upstream would assume an etcd without progress notifications, and consistent
// lists would bypass the watch cache.
type etcdFeatures struct{ feature.FeatureSupportChecker }

func (etcdFeatures) Supports(f storage.Feature) bool { return f == storage.RequestWatchProgress }

// client opens a client in process.
func (s *store) client() (*clientv3.Client, error) {
	<-s.up
	if s.err != nil {
		return nil, s.err
	}
	return v3client.New(s.server), nil
}
