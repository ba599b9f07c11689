package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// push puts REPOSITORY:TAG=ARCHIVE into a registry in this process, with so many
// more layers of so many bytes.
func push(store http.Handler, image string, more int, size int64, arch string) error {
	where, archive, found := strings.Cut(image, "=")
	repository, tag, tagged := strings.Cut(where, ":")
	if !found || !tagged {
		return fmt.Errorf("want REPOSITORY:TAG=ARCHIVE")
	}
	if pushed, err := pushLayout(store, repository, tag, archive); pushed || err != nil {
		return err
	}
	own, err := name.NewTag(path.Base(repository) + ":" + tag)
	if err != nil {
		return err
	}
	img, err := tarball.ImageFromPath(archive, &own)
	if err != nil {
		return err
	}
	for range more {
		layer, err := random.Layer(size, types.DockerLayer)
		if err != nil {
			return err
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return err
		}
	}
	if arch != "" {
		config, err := img.ConfigFile()
		if err != nil {
			return err
		}
		config = config.DeepCopy()
		config.Architecture = arch
		if img, err = mutate.ConfigFile(img, config); err != nil {
			return err
		}
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			return err
		}
		content, err := layer.Compressed()
		if err != nil {
			return err
		}
		if err := putBlob(store, repository, digest, content); err != nil {
			return err
		}
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	digest, err := img.ConfigName()
	if err != nil {
		return err
	}
	if err := putBlob(store, repository, digest, io.NopCloser(bytes.NewReader(config))); err != nil {
		return err
	}
	manifest, err := img.RawManifest()
	if err != nil {
		return err
	}
	kind, err := img.MediaType()
	if err != nil {
		return err
	}
	return putManifest(store, repository, tag, kind, manifest)
}

func putManifest(store http.Handler, repository, tag string, kind types.MediaType, text []byte) error {
	text, err := altered(repository, text)
	if err != nil {
		return err
	}
	return send(store, http.MethodPut, "/v2/"+repository+"/manifests/"+tag, string(kind), bytes.NewReader(text))
}

// pushLayout puts the first image of an archive with an OCI layout there as it is;
// false where it has none.
func pushLayout(store http.Handler, repository, tag, archive string) (bool, error) {
	file, err := os.Open(archive)
	if err != nil {
		return false, err
	}
	defer file.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			files[header.Name], err = io.ReadAll(r)
		}
		if err != nil {
			return false, err
		}
	}
	if files["oci-layout"] == nil {
		return false, nil
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(files["index.json"], &index); err != nil || len(index.Manifests) == 0 {
		return false, fmt.Errorf("read index of %s: %w", archive, err)
	}
	for name, content := range files {
		if digest, is := strings.CutPrefix(name, "blobs/sha256/"); is {
			if err := putBlob(store, repository, v1.Hash{Algorithm: "sha256", Hex: digest}, io.NopCloser(bytes.NewReader(content))); err != nil {
				return false, err
			}
		}
	}
	first := index.Manifests[0]
	return true, putManifest(store, repository, tag, first.MediaType, files["blobs/sha256/"+first.Digest.Hex])
}

func putBlob(store http.Handler, repository string, digest v1.Hash, content io.ReadCloser) error {
	defer content.Close()
	return send(store, http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+digest.String(), "application/octet-stream", content)
}

func send(store http.Handler, method, url, kind string, body io.Reader) error {
	request := httptest.NewRequest(method, url, body)
	request.Header.Set("Content-Type", kind)
	answer := httptest.NewRecorder()
	store.ServeHTTP(answer, request)
	if answer.Code/100 != 2 {
		return fmt.Errorf("%s %s: %d %s", method, url, answer.Code, answer.Body)
	}
	return nil
}
