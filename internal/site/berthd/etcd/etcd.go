// Package etcd runs a member of an etcd cluster. What berthd keeps in etcd does not belong here.
package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"berth.dev/berth/internal/site/berthd/keys"
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
	// Cert and Key are the files of its certificate and key.
	Cert, Key string
	// Join reports whether the other members already run and expect this one.
	Join bool
	// HTTP is the address for HTTP; "" to serve it on the port of gRPC.
	HTTP string
	// ConnectionAge limits how long a client keeps a connection for gRPC; 0 for 10 minutes. etcd
	// checks who may watch a key only when the watch begins, and certificates when a connection
	// begins. Clients resume their watches in the next connection.
	ConnectionAge time.Duration
}

// startLimit bounds how long a member waits for the others.
const startLimit = 2 * time.Minute

const (
	connectionAge = 10 * time.Minute
	// connectionGrace is the time for requests to finish in a connection that ends.
	connectionGrace = 5 * time.Second
)

// DefaultHTTP is the default HTTP address of a member, with the same certificates: only
// its own host can connect.
const DefaultHTTP = "127.0.0.1:2381"

// Run runs a member until the context ends. Clients and members authenticate by
// certificates of the same authority.
func Run(ctx context.Context, config siteconf.Etcd, member Member) error {
	client, peer := url.URL{Scheme: "https", Host: member.Host + ":2379"}, url.URL{Scheme: "https", Host: member.Host + ":2380"}
	info := transport.TLSInfo{CertFile: member.Cert, KeyFile: member.Key, TrustedCAFile: config.CA, ClientCertAuth: true}
	peers, err := peerSecurity(info)
	if err != nil {
		return err
	}
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialCluster = member.Name, member.Dir, member.Cluster
	if member.Join {
		c.ClusterState = embed.ClusterStateFlagExisting
	}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	// On a port that also serves HTTP, all gRPC passes through Go's HTTP server,
	// which costs etcd more than the requests themselves. So HTTP has its own port,
	// for people and for the collection of metrics.
	if member.HTTP != "" {
		c.ListenClientHttpUrls = []url.URL{{Scheme: "https", Host: member.HTTP}}
	}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.ClientTLSInfo, c.PeerTLSInfo = info, peers
	guard := new(guard)
	c.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainUnaryInterceptor(guard.check), grpc.KeepaliveParams(keepalive.ServerParameters{
		Time: c.GRPCKeepAliveInterval, Timeout: c.GRPCKeepAliveTimeout,
		MaxConnectionAge: cmp.Or(member.ConnectionAge, connectionAge), MaxConnectionAgeGrace: connectionGrace,
	})}
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
	guard.server.Store(e.Server)
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

// peerSecurity returns how members recognize each other. If this member has a certificate that only
// members have, it accepts no other. Otherwise all hosts share one certificate.
func peerSecurity(info transport.TLSInfo) (transport.TLSInfo, error) {
	own, err := tls.LoadX509KeyPair(info.CertFile, info.KeyFile)
	if err != nil {
		return info, fmt.Errorf("read keys of etcd: %w", err)
	}
	if own.Leaf.Subject.CommonName == keys.MemberName {
		info.AllowedCN = keys.MemberName
		// A host with several addresses may connect from one that is not in its certificate.
		info.SkipClientSANVerify = true
	}
	return info, nil
}
