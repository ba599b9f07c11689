// Package mirror serves images from archives as a registry does, so that they
// satisfy imagePullPolicy Always. It only reads, and does not know pulled
// images: for these it answers 404, and containerd then queries their own
// registry.
//
// The protocol is the pull part of the OCI Distribution Specification, with
// containerd's parameter ns for the intended registry:
// https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pulling-manifests
package mirror

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Server is the registry. Its handlers can run at the same time.
type Server struct {
	// Names finds an image by its full name, such as docker.io/library/busybox:1.37. It
	// knows only the images to serve.
	Names interface {
		Get(ctx context.Context, name string) (images.Image, error)
		List(ctx context.Context, filters ...string) ([]images.Image, error)
	}
	// Content holds the blobs of the images.
	Content content.Provider
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "this registry can only be read", http.StatusMethodNotAllowed)
		return
	}
	path, ok := strings.CutPrefix(r.URL.Path, "/v2/")
	if !ok {
		http.NotFound(w, r)
		return
	}
	if path == "" {
		return // 200 OK: this server speaks the protocol
	}
	target, err := s.find(r.Context(), r.URL.Query().Get("ns"), path)
	if err == nil {
		err = s.send(w, r, target)
	}
	switch {
	case err == nil:
	case errdefs.IsNotFound(err):
		http.Error(w, `{"errors":[{"code":"NAME_UNKNOWN","message":"no archive holds it"}]}`, http.StatusNotFound)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// find returns the manifest or blob of a path below /v2/: REPOSITORY/manifests/REFERENCE or
// REPOSITORY/blobs/DIGEST. The name of a repository may contain these words, too. The
// error for an unknown path wraps errdefs.ErrNotFound.
func (s *Server) find(ctx context.Context, registry, path string) (ocispec.Descriptor, error) {
	words := strings.Split(path, "/")
	if len(words) < 3 {
		return ocispec.Descriptor{}, fmt.Errorf("path %q: %w", path, errdefs.ErrNotFound)
	}
	repository := strings.Join(words[:len(words)-2], "/")
	kind, reference := words[len(words)-2], words[len(words)-1]
	dgst, err := digest.Parse(reference)
	switch {
	case err == nil && (kind == "manifests" || kind == "blobs"):
		return s.findDigest(ctx, dgst)
	case kind == "manifests":
		image, err := s.Names.Get(ctx, registry+"/"+repository+":"+reference)
		return image.Target, err
	default:
		return ocispec.Descriptor{}, fmt.Errorf("path %q: %w", path, errdefs.ErrNotFound)
	}
}

// findDigest looks for a manifest or blob in all images. That is slow, but there are few
// images, and containerd requests only blobs that its own store lacks. That store has most
// of the same blobs.
func (s *Server) findDigest(ctx context.Context, dgst digest.Digest) (found ocispec.Descriptor, err error) {
	all, err := s.Names.List(ctx)
	if err != nil {
		return found, fmt.Errorf("list images of archives: %w", err)
	}
	visit := images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if desc.Digest == dgst {
			found = desc
		}
		children, err := images.Children(ctx, s.Content, desc)
		if errdefs.IsNotFound(err) { // of another platform
			return nil, nil
		}
		return children, err
	})
	for _, image := range all {
		if err := images.Walk(ctx, visit, image.Target); err != nil {
			return found, fmt.Errorf("read image %s: %w", image.Name, err)
		}
		if found.Digest != "" {
			return found, nil
		}
	}
	return found, fmt.Errorf("blob %s: %w", dgst, errdefs.ErrNotFound)
}

func (s *Server) send(w http.ResponseWriter, r *http.Request, desc ocispec.Descriptor) error {
	blob, err := s.Content.ReaderAt(r.Context(), desc)
	if err != nil {
		return err
	}
	defer blob.Close()
	w.Header().Set("Content-Type", desc.MediaType)
	w.Header().Set("Docker-Content-Digest", desc.Digest.String())
	w.Header().Set("ETag", `"`+desc.Digest.String()+`"`)
	http.ServeContent(w, r, "", time.Time{}, io.NewSectionReader(blob, 0, blob.Size()))
	return nil
}
