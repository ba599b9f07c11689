package control

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"berth.dev/berth/internal/base/cluster"
)

const (
	// peerPort is the port where members of etcd listen for each other, on the
	// node's address inside the cluster.
	peerPort = 2380
	// peerTick and peerElection make a member call an election after one to two
	// seconds without a heartbeat from the leader. They are etcd's defaults. On a
	// fully loaded machine, heartbeats may be late by some tenths of a second.
	peerTick     = 100 // ms
	peerElection = 10  // ticks
	// peerCatchUp is the number of entries kept for a member that was cut off. A
	// member that misses more gets the whole database.
	peerCatchUp = 1000
	// bootstrapTimeout bounds the request to each other member whether the cluster
	// exists already. The other members may still be starting.
	bootstrapTimeout = 200 * time.Millisecond
	peerLogBurst     = 3
	// peerReadLimit is the longest time to read a request, as in etcd.
	peerReadLimit = 5 * time.Minute
)

// replicate configures the server as one of several members.
func replicate(c *config.ServerConfig, plan cluster.Plan) error {
	members := types.URLsMap{}
	for _, member := range plan.Replicas() {
		members[member.Name] = peerURLs(member.Address)
	}
	own := plan.Members[plan.Index]
	c.Name = own.Name
	c.PeerURLs = members[own.Name]
	// No client connects to this URL; see store.
	c.ClientURLs = members[own.Name]
	c.InitialPeerURLsMap = members
	c.PeerTLSInfo = peerTLS(plan)
	c.TickMs, c.ElectionTicks = peerTick, peerElection
	c.InitialElectionTickAdvance = true
	c.BootstrapTimeout = bootstrapTimeout
	c.SnapshotCatchUpEntries = peerCatchUp
	c.Logger = peerLog()
	return nil
}

// peerLog returns a logger for etcd that also writes when members elect a leader, and when
// heartbeats or requests are late: why the API of all nodes does not answer for seconds can
// only be found there. On a busy machine, the same message comes for each request, so there
// are at most peerLogBurst of it in a second.
func peerLog() *zap.Logger {
	return zap.New(zapcore.NewSamplerWithOptions(storeCore(zapcore.InfoLevel), time.Second, peerLogBurst, 0)).Named("etcd")
}

func peerURLs(address netip.Addr) types.URLs {
	return types.URLs{{Scheme: "https", Host: netip.AddrPortFrom(address, peerPort).String()}}
}

// peerTLS restricts connections to members: both ends need a certificate for their
// address, from an authority that signs nothing else.
func peerTLS(plan cluster.Plan) transport.TLSInfo {
	file := plan.Paths.PKI
	return transport.TLSInfo{
		CertFile: file(cluster.EtcdPeer + ".crt"), KeyFile: file(cluster.EtcdPeer + ".key"),
		TrustedCAFile: file(cluster.EtcdCA + ".crt"), ClientCertAuth: true,
	}
}

// servePeers listens for the other members.
func servePeers(plan cluster.Plan, server *etcdserver.EtcdServer) (*http.Server, error) {
	listener, err := listenForPeers(plan, peerURLs(plan.Addresses.Node)[0].Host)
	if err != nil {
		return nil, fmt.Errorf("listen for other members of etcd: %w", err)
	}
	peers := &http.Server{
		Handler:     etcdhttp.NewPeerHandler(server.Logger(), server),
		ReadTimeout: peerReadLimit,
		ErrorLog:    slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // errors of unknown clients
	}
	go func(l net.Listener) { _ = peers.Serve(l) }(listener) // until it is closed
	return peers, nil
}

// listenForPeers returns a listener that only members of etcd can use.
func listenForPeers(plan cluster.Plan, address string) (net.Listener, error) {
	secrets := peerTLS(plan)
	return transport.NewListenerWithOpts(address, "https",
		transport.WithTLSInfo(&secrets),
		transport.WithTimeout(rafthttp.ConnReadTimeout, rafthttp.ConnWriteTimeout))
}
