package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// fake is a snapshotter that prepares, or says that there is nothing to prepare.
type fake struct {
	snapshots.Snapshotter
	said    error
	removed []string
}

func (f *fake) Prepare(context.Context, string, string, ...snapshots.Opt) ([]mount.Mount, error) {
	return []mount.Mount{{Type: "bind"}}, f.said
}

func (f *fake) Remove(_ context.Context, key string) error {
	f.removed = append(f.removed, key)
	return nil
}

// TestLazily: a layer that would come as a whole fails the pull.
func TestLazily(t *testing.T) {
	layer := snapshots.WithLabels(map[string]string{target: "sha256:1"})
	f := &fake{}
	if _, err := (lazily{f}).Prepare(t.Context(), "key", "", layer); err == nil || !strings.Contains(err.Error(), "sha256:1") || len(f.removed) != 1 {
		t.Errorf("a layer to unpack: %v, removed %v", err, f.removed)
	}
	if mounts, err := (lazily{f}).Prepare(t.Context(), "key", ""); err != nil || len(mounts) != 1 {
		t.Errorf("a container's: %v, %v", mounts, err)
	}
	f.said = errdefs.ErrAlreadyExists
	if _, err := (lazily{f}).Prepare(t.Context(), "key", "", layer); !errors.Is(err, errdefs.ErrAlreadyExists) {
		t.Errorf("a layer that is mounted: %v", err)
	}
	wrong := errors.New("wrong")
	if _, err := (lazily{f}).Prepare(t.Context(), "key", "", func(*snapshots.Info) error { return wrong }); !errors.Is(err, wrong) {
		t.Errorf("an option that fails: %v", err)
	}
	if len(f.removed) != 1 {
		t.Errorf("removed %v", f.removed)
	}
}
