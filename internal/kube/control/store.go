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
	// memberName is the only member's.
	memberName = "berth"
	// memberURL names the member to itself. A member must have a peer URL,
	// but a cluster of one never connects to it and nothing listens there. It
	// is an address rather than a name, because names are looked up.
	memberURL = "http://127.0.0.1:2380"
	// storeToken keeps members of different clusters apart.
	storeToken = "berth"
	// storeQuota bounds the database, which lives in memory.
	storeQuota = 2 << 30
	// walSegment replaces 64 MB: the log is on a tmpfs, and two segments are
	// allocated ahead.
	walSegment = 2 << 20
)

// store is etcd without network clients: the raft and storage core of etcd's
// server. Package embed is no alternative, because it insists on listening for
// clients and peers. A socket that does not exist needs no authentication. Only
// several members listen for each other; see peers.go.
type store struct {
	server *etcdserver.EtcdServer
	peers  *http.Server  // nil without others
	up     chan struct{} // closed when server or err is set
	err    error
}

// startStore starts etcd with its data in the plan's directory, which it
// creates, or continues with the data that is there. It returns at once; up is
// closed when the store answers.
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
			s.err = fmt.Errorf("start etcd (data %s): it stopped by itself; see the log above", dir)
		}
	}()
	return s
}

func newStoreServer(plan cluster.Plan) (*etcdserver.EtcdServer, error) {
	dir := plan.Paths.Etcd()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// A package variable of etcd's, and the only way to set it.
	wal.SegmentSizeBytes = walSegment
	configuration, err := storeConfig(dir)
	if err != nil {
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
		// Alone, a member elects itself when its election times out, so one or
		// two ticks are the time to start. Waking up a hundred times a second
		// costs half a percent of a core; 100 ms would cost 150 ms of start.
		TickMs:        10,
		ElectionTicks: 2,
		PreVote:       true,
		// Everything is on a tmpfs and dies with the node.
		UnsafeNoFsync:     true,
		QuotaBackendBytes: storeQuota,
		// The log takes memory twice, on the tmpfs and in the process. Without
		// followers that have to catch up, little of it is ever needed.
		SnapshotCount:          2000,
		SnapshotCatchUpEntries: 100,
		MaxSnapFiles:           1,
		MaxWALFiles:            1,
		// etcd's own defaults, which package embed would fill in.
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

// close stops the store. It may be called at any time, and twice.
func (s *store) close() {
	<-s.up
	if s.peers != nil {
		_ = s.peers.Close()
	}
	if s.server != nil {
		s.server.Stop()
	}
}

// storeLog returns etcd's own kind of logger, on stderr like everything else. etcd
// logs each step of a normal start as info and some of them as a warning.
func storeLog() *zap.Logger {
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.ISO8601TimeEncoder
	return zap.New(zapcore.NewCore(
		zapcore.NewConsoleEncoder(encoding), zapcore.Lock(os.Stderr), zapcore.ErrorLevel)).Named("etcd")
}
