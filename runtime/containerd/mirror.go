package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/log"
	"github.com/containerd/plugin"

	"berth.dev/berth/runtime/internal/imagestore"
	"berth.dev/berth/runtime/internal/mirror"
)

// mirrorConfig is the section [plugins.'io.containerd.service.v1.berth-mirror'].
type mirrorConfig struct {
	// Address is the host:port to listen on; empty for no mirror.
	Address string `toml:"address"`
}

// mirrorPlugin serves the images of archives to this very daemon. A process of
// its own would cost every cluster its start and its memory, to answer what is
// here anyway.
func mirrorPlugin() *plugin.Registration {
	return &plugin.Registration{
		Type:     plugins.ServicePlugin,
		ID:       "berth-mirror",
		Requires: []plugin.Type{plugins.MetadataPlugin},
		Config:   &mirrorConfig{},
		InitFn:   startMirror,
	}
}

// runningMirror ends with the daemon, which closes its plugins.
type runningMirror struct{ *http.Server }

func startMirror(ic *plugin.InitContext) (any, error) {
	address := ic.Config.(*mirrorConfig).Address
	if address == "" {
		return nil, fmt.Errorf("mirror of archives: no address given: %w", plugin.ErrSkipPlugin)
	}
	instance, err := ic.GetSingle(plugins.MetadataPlugin)
	if err != nil {
		return nil, err
	}
	db := instance.(*metadata.DB)
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for the mirror of archives: %w", err)
	}
	handler := &mirror.Server{Names: archiveNames{metadata.NewImageStore(db)}, Content: db.ContentStore()}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		// Content is asked for in the namespace in which the kubelet's images are.
		BaseContext: func(net.Listener) context.Context { return namespaces.WithNamespace(ic.Context, "k8s.io") },
	}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.G(ic.Context).WithError(err).Error("mirror of archives ended")
		}
	}()
	return runningMirror{server}, nil
}

// archiveNames looks names up in the namespace where the importer notes them.
type archiveNames struct{ images.Store }

func (n archiveNames) Get(ctx context.Context, name string) (images.Image, error) {
	return n.Store.Get(namespaces.WithNamespace(ctx, imagestore.ArchiveNamespace), name)
}

func (n archiveNames) List(ctx context.Context, filters ...string) ([]images.Image, error) {
	return n.Store.List(namespaces.WithNamespace(ctx, imagestore.ArchiveNamespace), filters...)
}
