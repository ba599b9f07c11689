package berthd

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

// Member is one of the cluster's own etcd, for sites that have none.
type Member struct {
	Name string
	// Dir is where its data is, on a disk.
	Dir string
	// Host is the address or name under which the other members reach it.
	Host string
	// Cluster are all members, NAME=https://HOST:2380 with commas.
	Cluster string
	// HTTP is where it serves HTTP. Without, it does so beside gRPC.
	HTTP string
}

// memberStart bounds how long a member waits for the others.
const memberStart = 2 * time.Minute

// etcdHTTP is where a member serves HTTP, with the same certificates: to its own host,
// unless somebody says otherwise.
const etcdHTTP = "127.0.0.1:2381"

// RunEtcd is a member until the context ends. Clients and members prove who they
// are by certificates of the same authority.
func RunEtcd(ctx context.Context, config siteconf.Etcd, member Member) error {
	client, peer := url.URL{Scheme: "https", Host: member.Host + ":2379"}, url.URL{Scheme: "https", Host: member.Host + ":2380"}
	tls := transport.TLSInfo{CertFile: config.Cert, KeyFile: config.Key, TrustedCAFile: config.CA, ClientCertAuth: true}
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialCluster = member.Name, member.Dir, member.Cluster
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	// On a port that serves HTTP as well, all of gRPC passes Go's HTTP server, which costs
	// etcd more than what is asked. So HTTP, for whoever looks at this member by hand or
	// has its metrics collected, has a port of its own.
	if member.HTTP != "" {
		c.ListenClientHttpUrls = []url.URL{{Scheme: "https", Host: member.HTTP}}
	}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.ClientTLSInfo, c.PeerTLSInfo = tls, tls
	c.LogLevel = "error"
	// Jobs come and go: what they were is of no use after an hour.
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
	case <-time.After(memberStart):
		return errors.New("start etcd: the other members do not answer: are they started, and their ports 2380 open?")
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
