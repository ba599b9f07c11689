package control

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	etcdfeatures "go.etcd.io/etcd/server/v3/features"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"berth.dev/berth/internal/base/cluster"
)

const (
	// memberName is the name of the only member.
	memberName = "berth"
	// memberURL is the peer URL that etcd requires of each member. Nothing listens
	// there, because the only member of a cluster never connects to itself. The URL
	// has an address, because etcd would look up a name.
	memberURL = "http://127.0.0.1:2380"
	// storeToken is etcd's token that separates members of different clusters. berth
	// does so by certificates, so the token is constant.
	storeToken = "berth"
	// storeQuota bounds the size of the database in bytes. It is in memory.
	storeQuota = 2 << 30
	// walSegment is the size of a file of the write-ahead log in bytes. etcd's default
	// of 64 MB is too large, because the log is in memory (on a tmpfs) and etcd
	// allocates two segments in advance.
	walSegment = 2 << 20
)

// store is etcd without a listener for clients: only the raft and storage core of etcd's
// server, called in this process. Without a socket, it needs no authentication. etcd's
// package embed is not used, because it always listens for clients and peers. Members
// listen for each other only if there are several; see peers.go.
type store struct {
	server *etcdserver.EtcdServer
	peers  *http.Server  // nil if this is the only member
	up     chan struct{} // closed when server or err is set
	err    error
}

// startStore starts etcd, with the data in the plan's directory if there is any. It returns
// at once. up is closed when the store answers, or when the start has failed.
func startStore(plan cluster.Plan) *store {
	s := &store{up: make(chan struct{})}
	dir := plan.Paths.Etcd()
	go func() {
		defer close(s.up)
		server, err := newStoreServer(plan)
		if err != nil {
			s.err = fmt.Errorf("start etcd (data %s): %w", dir, err)
			return
		}
		server.Start()
		if plan.Replicated() {
			if s.peers, err = servePeers(plan, server); err != nil {
				server.Stop()
				s.err = fmt.Errorf("start etcd (data %s): %w", dir, err)
				return
			}
		}
		select {
		case <-server.ReadyNotify():
			s.server = server
		case <-server.StopNotify():
			s.err = fmt.Errorf("start etcd (data %s): it stopped unexpectedly; see the log above", dir)
		}
	}()
	return s
}

func newStoreServer(plan cluster.Plan) (*etcdserver.EtcdServer, error) {
	dir := plan.Paths.Etcd()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// etcd has no other way to set the size than this package variable.
	wal.SegmentSizeBytes = walSegment
	configuration, err := storeConfig(dir)
	if err != nil {
		return nil, err
	}
	if err := beginAfter(configuration, plan); err != nil {
		return nil, err
	}
	if plan.Replicated() {
		if err := replicate(&configuration, plan); err != nil {
			return nil, err
		}
	}
	return etcdserver.NewServer(configuration)
}

// storeConfig returns the configuration of the only member.
func storeConfig(dir string) (config.ServerConfig, error) {
	member, err := url.Parse(memberURL)
	if err != nil {
		return config.ServerConfig{}, err
	}
	log := storeLog()
	return config.ServerConfig{
		Name:                memberName,
		DataDir:             dir,
		PeerURLs:            types.URLs{*member},
		ClientURLs:          types.URLs{*member},
		InitialPeerURLsMap:  types.URLsMap{memberName: types.URLs{*member}},
		InitialClusterToken: storeToken,
		NewCluster:          true,
		// The only member elects itself when its election times out, so the start
		// takes one or two ticks. A tick of 10 ms costs half a percent of a core; a
		// tick of 100 ms would delay the start by 150 ms.
		TickMs:        10,
		ElectionTicks: 2,
		PreVote:       true,
		// Everything is on a tmpfs and dies with the node.
		UnsafeNoFsync:     true,
		QuotaBackendBytes: storeQuota,
		// The log takes memory on the tmpfs and again in the process. Only followers
		// that catch up need old entries, and there are none.
		SnapshotCount:          2000,
		SnapshotCatchUpEntries: 100,
		MaxSnapFiles:           1,
		MaxWALFiles:            1,
		// These are etcd's defaults, which package embed would set.
		MaxTxnOps:                   128,
		MaxRequestBytes:             1.5 * 1024 * 1024,
		AuthToken:                   "simple",
		BcryptCost:                  10,
		TokenTTL:                    300,
		WarningApplyDuration:        time.Second,
		WarningUnaryRequestDuration: time.Second,
		DowngradeCheckTime:          time.Hour,
		CompactHashCheckTime:        time.Hour,
		MaxLearners:                 1,
		V2Deprecation:               config.V2DeprDefault,
		ServerFeatureGate:           etcdfeatures.NewDefaultServerFeatureGate(memberName, log),
		Metrics:                     "basic",
		Logger:                      log,
	}, nil
}

// close waits until the start has ended, and stops the store. It may be called twice.
func (s *store) close() {
	<-s.up
	if s.peers != nil {
		_ = s.peers.Close()
	}
	if s.server != nil {
		s.server.Stop()
	}
}

// storeLog returns a logger for etcd that writes errors to stderr. It omits warnings,
// because etcd logs some steps of a normal start as warnings.
func storeLog() *zap.Logger { return zap.New(storeCore(zapcore.ErrorLevel)).Named("etcd") }

func storeCore(level zapcore.Level) zapcore.Core {
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.ISO8601TimeEncoder
	return zapcore.NewCore(zapcore.NewConsoleEncoder(encoding), zapcore.Lock(os.Stderr), level)
}
