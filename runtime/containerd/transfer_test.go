package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/transfer/image"
	transferregistry "github.com/containerd/containerd/v2/core/transfer/registry"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/lazy"
)

type helper map[string]transferregistry.Credentials

func (h helper) GetCredentials(_ context.Context, ref, host string) (transferregistry.Credentials, error) {
	if ref != "registry.test/app:1" {
		return transferregistry.Credentials{}, nil
	}
	if host == "broken.test" {
		return transferregistry.Credentials{}, errors.New("it cannot be read")
	}
	return h[host], nil
}

// A pull supplies its own login.
func TestAskLogin(t *testing.T) {
	logins := helper{
		"registry.test": {Host: "registry.test", Username: "alice", Secret: "secret-word"},
		"token.test":    {Host: "token.test", Secret: "token"},
		"header.test":   {Host: "header.test", Header: "Bearer x"},
	}
	with, err := transferregistry.NewOCIRegistry(t.Context(), "registry.test/app:1", transferregistry.WithCredentials(logins))
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]lazy.Login{
		"registry.test": {User: "alice", Secret: "secret-word"}, "token.test": {Secret: "token"}, "elsewhere.test": {},
	} {
		if got, err := askLogin(t.Context(), with, host, time.Minute); got != want || err != nil {
			t.Errorf("%s: %t, %v", host, got == want, err)
		}
	}
	if _, err := askLogin(t.Context(), with, "header.test", time.Minute); err == nil {
		t.Error("a header is taken for a password")
	}
	// containerd does not answer then.
	if _, err := askLogin(t.Context(), with, "broken.test", 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "is not available") {
		t.Errorf("a login that cannot be read: %v", err)
	}
	without, err := transferregistry.NewOCIRegistry(t.Context(), "registry.test/app:1")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := askLogin(t.Context(), without, "registry.test", time.Minute); got != (lazy.Login{}) || err != nil {
		t.Errorf("without a login: %v", err)
	}
}

// A configuration that states a large size is refused before it is fetched.
func TestLargeTextsAreNotFetched(t *testing.T) {
	store, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	filter := checked{image.NewStore("app:1"), &pulls{}}.ImageFilter(func(_ context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		return []ocispec.Descriptor{{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromString("a"), Size: desc.Size}}, nil
	}, store)
	for size, full := range map[int64]bool{1 << 20: false, 500 << 20: true} {
		_, err := filter(t.Context(), ocispec.Descriptor{MediaType: "other", Size: size})
		if errors.Is(err, budget.ErrExceeded) != full {
			t.Errorf("a configuration of %d bytes: %v", size, err)
		}
	}
}
