package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	introspection "github.com/containerd/containerd/api/services/introspection/v1"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestImportIsRepeatedAfterEndOfContainerd(t *testing.T) {
	ended := fmt.Errorf("bring layer: %w", errdefs.ErrUnavailable)
	corrupt := errors.New("corrupt")
	for _, test := range []struct {
		name   string
		errors []error
		want   error
	}{
		{"no error", []error{nil}, nil},
		{"containerd ended twice", []error{ended, ended, nil}, nil},
		{"a bad archive", []error{corrupt, nil}, corrupt},
		{"containerd ends each time", []error{ended, ended, ended, ended, nil}, ended},
	} {
		var attempts, waits int
		err := repeat(t.Context(), func(context.Context) (bool, error) {
			waits++
			return true, nil
		}, func() error {
			attempts++
			return test.errors[attempts-1]
		})
		if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
			t.Errorf("%s: error %v, want %v", test.name, err, test.want)
		}
		if waits != attempts-1 {
			t.Errorf("%s: %d waits for containerd, want one between two of %d attempts", test.name, waits, attempts)
		}
	}
}

func TestImportEndsWithoutContainerd(t *testing.T) {
	attempts := 0
	err := repeat(t.Context(), func(context.Context) (bool, error) {
		return false, context.DeadlineExceeded
	}, func() error {
		attempts++
		return errdefs.ErrUnavailable
	})
	if attempts != 1 || !errdefs.IsUnavailable(err) {
		t.Errorf("%d attempts, error %v; want one, and its error", attempts, err)
	}
}

// endingContainerd answers as if containerd ended during the first and the third request.
type endingContainerd struct {
	introspection.UnimplementedIntrospectionServer
	requests int
}

func (c *endingContainerd) Plugins(context.Context, *introspection.PluginsRequest) (*introspection.PluginsResponse, error) {
	c.requests++
	if c.requests == 1 || c.requests == 3 {
		return nil, status.Error(codes.Unavailable, "connection refused")
	}
	return &introspection.PluginsResponse{}, nil
}

// An import that begins while containerd is started again waits for it.
func TestImportBeginsWhileContainerdStarts(t *testing.T) {
	dir, err := os.MkdirTemp("", "import-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, ending := grpc.NewServer(), &endingContainerd{}
	introspection.RegisterIntrospectionServer(server, ending)
	healthapi.RegisterHealthServer(server, health.NewServer())
	go server.Serve(listener)
	// The server has no service that an import needs next.
	err = importArchives(t.Context(), []string{"--socket", socket, "/archive.tar"}, io.Discard)
	server.Stop()
	if !errors.Is(err, errReported) || ending.requests != 5 {
		t.Errorf("error %v after %d requests; want an error of the archive after 5", err, ending.requests)
	}
}
