package mirror

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// store holds images and blobs in memory.
type store struct {
	names map[string]ocispec.Descriptor
	blobs map[digest.Digest][]byte
}

func (s store) Get(_ context.Context, name string) (images.Image, error) {
	target, ok := s.names[name]
	if !ok {
		return images.Image{}, fmt.Errorf("image %s: %w", name, errdefs.ErrNotFound)
	}
	return images.Image{Name: name, Target: target}, nil
}

func (s store) List(context.Context, ...string) (all []images.Image, err error) {
	for name, target := range s.names {
		all = append(all, images.Image{Name: name, Target: target})
	}
	return all, nil
}

type blob struct{ *bytes.Reader }

func (blob) Close() error { return nil }

func (s store) ReaderAt(_ context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	text, ok := s.blobs[desc.Digest]
	if !ok {
		return nil, fmt.Errorf("blob %s: %w", desc.Digest, errdefs.ErrNotFound)
	}
	return blob{bytes.NewReader(text)}, nil
}

func (s store) put(mediaType string, text []byte) ocispec.Descriptor {
	dgst := digest.FromBytes(text)
	s.blobs[dgst] = text
	return ocispec.Descriptor{MediaType: mediaType, Digest: dgst, Size: int64(len(text))}
}

func TestServe(t *testing.T) {
	s := store{map[string]ocispec.Descriptor{}, map[digest.Digest][]byte{}}
	layer := s.put(ocispec.MediaTypeImageLayer, []byte("layer"))
	manifest, err := json.Marshal(ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    s.put(ocispec.MediaTypeImageConfig, []byte("{}")),
		Layers:    []ocispec.Descriptor{layer},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.names["reg.test:5000/team/manifests/app:1"] = s.put(ocispec.MediaTypeImageManifest, manifest)
	secret := s.put(ocispec.MediaTypeImageLayer, []byte("of an image that was pulled"))
	server := httptest.NewServer(&Server{Names: s, Content: s})
	defer server.Close()

	const repository = "/v2/team/manifests/app"
	for _, c := range []struct {
		path string
		code int
		body string
	}{
		{"/v2/", 200, ""},
		{repository + "/manifests/1?ns=reg.test:5000", 200, string(manifest)},
		{repository + "/manifests/" + digest.FromBytes(manifest).String() + "?ns=reg.test:5000", 200, string(manifest)},
		{repository + "/blobs/" + layer.Digest.String(), 200, "layer"},
		{repository + "/manifests/2?ns=reg.test:5000", 404, ""},
		{repository + "/manifests/1?ns=docker.io", 404, ""},
		{repository + "/manifests/1", 404, ""},
		{repository + "/blobs/" + secret.Digest.String(), 404, ""},
		{repository + "/blobs/../../secret", 404, ""},
		{"/v2/_catalog", 404, ""},
		{"/etc/passwd", 404, ""},
	} {
		answer, err := http.Get(server.URL + c.path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != c.code || c.code == 200 && string(body) != c.body {
			t.Errorf("GET %s: %d %q, %v; want %d %q", c.path, answer.StatusCode, body, err, c.code, c.body)
		}
	}
	answer, err := http.Head(server.URL + repository + "/manifests/1?ns=reg.test:5000")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if got := answer.Header.Get("Docker-Content-Digest"); got != digest.FromBytes(manifest).String() || answer.ContentLength != int64(len(manifest)) ||
		answer.Header.Get("Content-Type") != ocispec.MediaTypeImageManifest {
		t.Errorf("HEAD: %v", answer.Header)
	}
	if answer, err = http.Post(server.URL+repository+"/blobs/uploads/", "", nil); err != nil || answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %v %v", answer, err)
	}
}
