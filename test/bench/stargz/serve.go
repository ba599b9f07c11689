package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/stargz-snapshotter/fs/config"
	"github.com/containerd/stargz-snapshotter/service"
	"github.com/containerd/stargz-snapshotter/service/resolver"
	"google.golang.org/grpc"
)

// Arguments and environment that make this program the snapshotter.
const (
	serveArg  = "stargz-snapshotter"
	socketEnv = "BERTH_BENCH_STARGZ_SOCKET"
	// readyFD is the descriptor that reports when it listens.
	readyFD = 3
)

// serve does the work of containerd-stargz-grpc: the unmodified snapshotter, but
// with the registries that berth configures for containerd.
func serve(root, hosts string) error {
	ctx := context.Background()
	socket := os.Getenv(socketEnv)
	for _, folder := range []string{filepath.Join(root, "snapshotter"), filepath.Dir(socket)} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return err
		}
	}
	var settings service.Config
	settings.Config = config.Config{NoPrometheus: true} // nobody asks for its metrics
	snapshotter, err := service.NewStargzSnapshotterService(ctx, root, &settings,
		service.WithCustomRegistryHosts(resolver.RegistryHostsFromCRIConfig(ctx, resolver.Registry{ConfigPath: hosts})))
	if err != nil {
		return fmt.Errorf("start the snapshotter in %s: %w", root, err)
	}
	server := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(lazily{snapshotter}))
	_ = os.Remove(socket) // of one that was killed
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	ready := os.NewFile(readyFD, "ready")
	if _, err := ready.Write([]byte{1}); err != nil {
		return err
	}
	if err := ready.Close(); err != nil {
		return err
	}
	return server.Serve(listener)
}

// target is the label that containerd sets when it is about to unpack a layer.
const target = "containerd.io/snapshot.ref"

// lazily fails a pull whose layers would be fetched as a whole. Where FUSE is
// unavailable, or an image is not eStargz, the snapshotter would let containerd
// unpack the layers, and figures of full pulls would pass for figures of lazy
// ones.
type lazily struct{ snapshots.Snapshotter }

func (l lazily) Prepare(ctx context.Context, key, parent string, options ...snapshots.Opt) ([]mount.Mount, error) {
	var asked snapshots.Info
	for _, option := range options {
		if err := option(&asked); err != nil {
			return nil, err
		}
	}
	mounts, err := l.Snapshotter.Prepare(ctx, key, parent, options...)
	layer, unpacks := asked.Labels[target]
	if err != nil || !unpacks {
		return mounts, err // that a layer is there already is an error, too
	}
	return nil, errors.Join(
		fmt.Errorf("stargz-snapshotter did not mount layer %s, and a pull of the whole layer is not measured; see containerd's log", layer),
		l.Remove(ctx, key))
}
