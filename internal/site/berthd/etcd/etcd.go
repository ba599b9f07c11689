// Package etcd runs a member of an etcd cluster. What berthd keeps in etcd does not belong here.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"berth.dev/berth/internal/site/siteconf"
)

// Member configures a member of an etcd cluster that berth runs, for sites without
// etcd.
type Member struct {
	Name string
	// Dir is its data directory, on a disk.
	Dir string
	// Host is the address or name under which the other members reach it.
	Host string
	// Cluster lists all members as NAME=https://HOST:2380, separated by commas.
	Cluster string
	// HTTP is the address for HTTP; "" to serve it on the port of gRPC.
	HTTP string
}

// startLimit bounds how long a member waits for the others.
const startLimit = 2 * time.Minute

// DefaultHTTP is the default HTTP address of a member, with the same certificates: only
// its own host can connect.
const DefaultHTTP = "127.0.0.1:2381"

// Run runs a member until the context ends. Clients and members authenticate by
// certificates of the same authority.
func Run(ctx context.Context, config siteconf.Etcd, member Member) error {
	client, peer := url.URL{Scheme: "https", Host: member.Host + ":2379"}, url.URL{Scheme: "https", Host: member.Host + ":2380"}
	tls := transport.TLSInfo{CertFile: config.Cert, KeyFile: config.Key, TrustedCAFile: config.CA, ClientCertAuth: true}
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialCluster = member.Name, member.Dir, member.Cluster
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	// On a port that also serves HTTP, all gRPC passes through Go's HTTP server,
	// which costs etcd more than the requests themselves. So HTTP has its own port,
	// for people and for the collection of metrics.
	if member.HTTP != "" {
		c.ListenClientHttpUrls = []url.URL{{Scheme: "https", Host: member.HTTP}}
	}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.ClientTLSInfo, c.PeerTLSInfo = tls, tls
	c.LogLevel = "error"
	// Jobs come and go: their former keys are useless after an hour.
	c.AutoCompactionMode, c.AutoCompactionRetention = "periodic", "1h"
	e, err := embed.StartEtcd(c)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("start etcd member %s: %w: end what 'ss -ltnp' shows there, or, for HTTP (%s), give another address with --http", member.Name, err, member.HTTP)
	}
	if err != nil {
		return fmt.Errorf("start etcd member %s: %w", member.Name, err)
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		return fmt.Errorf("run etcd member %s: %w", member.Name, err)
	case <-time.After(startLimit):
		return errors.New("start etcd: the other members do not answer: start them, and open port 2380 on their hosts")
	case <-ctx.Done():
		return nil
	}
	select {
	case err := <-e.Err():
		return fmt.Errorf("run etcd member %s: %w", member.Name, err)
	case <-ctx.Done():
		return nil
	}
}
