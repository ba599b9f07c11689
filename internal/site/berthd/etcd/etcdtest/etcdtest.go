// Package etcdtest starts etcd for tests.
package etcdtest

import (
	"errors"
	"net"
	"net/url"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// New starts an etcd on the loopback that ends with the test, and returns a connection to it.
func New(t testing.TB) *clientv3.Client {
	t.Helper()
	for {
		client, peer := Loopback(t), Loopback(t)
		e, err := Start(t.TempDir(), client, peer)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue // another program has taken a port that was free before
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		return Dial(t, client.String())
	}
}

// Start starts an etcd with these addresses for clients and peers.
func Start(dir string, client, peer url.URL) (*embed.Etcd, error) {
	c := embed.NewConfig()
	c.Dir, c.LogLevel = dir, "error"
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = "default=" + peer.String()
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, err
	}
	<-e.Server.ReadyNotify()
	return e, nil
}

// Dial returns a connection that ends with the test.
func Dial(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// Loopback returns a free address of the loopback.
func Loopback(t testing.TB) url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return url.URL{Scheme: "http", Host: l.Addr().String()}
}
