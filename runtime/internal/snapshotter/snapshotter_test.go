package snapshotter

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
)

// noMounter fails the test if anything is mounted.
type noMounter struct{ t *testing.T }

func (m noMounter) Mount(context.Context, string, []string) error {
	m.t.Error("something is mounted")
	return errors.New("nothing can be mounted here")
}

// TestPlainLayersNeedNoMount starts a container on a layer with plain files,
// like the pause image's.
func TestPlainLayersNeedNoMount(t *testing.T) {
	root := t.TempDir()
	store, err := storage.NewMetaStore(filepath.Join(root, "metadata.db"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(root, store, noMounter{t}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	key := snapshots.UnpackKeyPrefix + "-1"
	mounts, err := s.Prepare(ctx, key, "")
	if err != nil {
		t.Fatal(err)
	}
	plain := Plain(mounts[0].Source)
	if err := errors.Join(os.Mkdir(plain, 0o755), os.Chmod(plain, 0o711), os.WriteFile(mounts[0].Source, nil, 0o400)); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(ctx, "layer", key); err != nil {
		t.Fatal(err)
	}
	mounts, err = s.Prepare(ctx, "container", "layer")
	if err != nil || len(mounts) != 1 || !slices.Contains(mounts[0].Options, "lowerdir="+plain) {
		t.Fatalf("a container has %v, %v", mounts, err)
	}
	again, err := s.Mounts(ctx, "container")
	if err != nil || len(again) != 1 || !slices.Equal(again[0].Options, mounts[0].Options) {
		t.Errorf("asked again, %v, %v", again, err)
	}
	for _, option := range mounts[0].Options {
		if upper, found := strings.CutPrefix(option, "upperdir="); found {
			if info, err := os.Stat(upper); err != nil || info.Mode().Perm() != 0o711 {
				t.Errorf("the root of the container: %v, %v", info, err)
			}
		}
	}
	if views, err := s.View(ctx, "view", "layer"); err != nil || len(views) != 1 || views[0].Source != plain {
		t.Errorf("a view has %v, %v", views, err)
	}
	for _, key := range []string{"view", "container", "layer"} {
		if err := s.Remove(ctx, key); err != nil {
			t.Error(err)
		}
	}
	if err := s.Cleanup(ctx); err != nil && os.Geteuid() == 0 { // an unprivileged user may not unmount
		t.Error(err)
	}
}
