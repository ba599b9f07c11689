package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// liesPrefix begins the names of repositories that lie: lies/KIND/NAME.
const liesPrefix = "lies/"

// A lie alters what a registry says of an image. Functions that are nil alter nothing.
type lie struct {
	// manifest alters the manifest before it is stored.
	manifest func(*v1.Manifest)
	// manifestAnswer, config and layer answer instead of the registry. honest is its own
	// answer to the same request.
	manifestAnswer, config, layer answerer
}

type answerer func(w http.ResponseWriter, r *http.Request, honest *http.Response)

const (
	tiny = 100
	huge = 1 << 40
)

var lies = map[string]lie{
	// Sizes of the manifest.
	"small": {manifest: sizeOfLayers(tiny)},
	"large": {manifest: sizeOfLayers(huge)},
	// The body ends before its Content-Length.
	"cut": {layer: cut},
	// Content-Length, and the body, are twice the size.
	"long": {layer: long},
	// Other bytes than the digest's.
	"other": {layer: other},
	// Bodies without end: of the size that the manifest states, and of a huge one.
	"endless":          {layer: endlessLayer},
	"endless-large":    {manifest: sizeOfLayers(huge), layer: endlessLayer},
	"endless-config":   {manifest: func(m *v1.Manifest) { m.Config.Size = huge }, config: endlessText},
	"endless-manifest": {manifestAnswer: endlessText},
	// A part of a layer of twice the size.
	"total": {layer: total},
}

// lieOf returns the lie of a repository; none for most.
func lieOf(repository string) (l lie, err error) {
	rest, is := strings.CutPrefix(repository, liesPrefix)
	if !is {
		return lie{}, nil
	}
	kind, _, _ := strings.Cut(rest, "/")
	l, known := lies[kind]
	if !known {
		return lie{}, fmt.Errorf("no lie has the name %s", kind)
	}
	return l, nil
}

// altered returns the text of a manifest with the lie of its repository.
func altered(repository string, text []byte) ([]byte, error) {
	l, err := lieOf(repository)
	if err != nil || l.manifest == nil {
		return text, err
	}
	var manifest v1.Manifest
	if err := json.Unmarshal(text, &manifest); err != nil {
		return nil, err
	}
	l.manifest(&manifest)
	return json.Marshal(manifest)
}

// lying answers requests for the repositories of lies.
func lying(store http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.Path, "/v2/")
		if !strings.HasPrefix(path, liesPrefix) || r.Method != http.MethodGet {
			store.ServeHTTP(w, r)
			return
		}
		l, err := lieOf(path)
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		recorder := httptest.NewRecorder()
		store.ServeHTTP(recorder, r)
		answer := l.layer
		if strings.Contains(path, "/manifests/") {
			answer = l.manifestAnswer
		} else if bytes.HasPrefix(recorder.Body.Bytes(), []byte("{")) {
			answer = l.config
		}
		if answer == nil {
			answer = repeat
		}
		answer(w, r, recorder.Result())
	})
}

func sizeOfLayers(size int64) func(*v1.Manifest) {
	return func(m *v1.Manifest) {
		for i := range m.Layers {
			m.Layers[i].Size = size
		}
	}
}

func repeat(w http.ResponseWriter, _ *http.Request, honest *http.Response) {
	content, _ := io.ReadAll(honest.Body) // of a recorder
	begin(w, honest, int64(len(content)))
	_, _ = w.Write(content)
}

func cut(w http.ResponseWriter, _ *http.Request, honest *http.Response) {
	content, _ := io.ReadAll(honest.Body)
	begin(w, honest, int64(len(content)))
	_, _ = w.Write(content[:len(content)/2])
	panic(http.ErrAbortHandler) // net/http's way to end a connection
}

func long(w http.ResponseWriter, _ *http.Request, honest *http.Response) {
	content, _ := io.ReadAll(honest.Body)
	begin(w, honest, 2*int64(len(content)))
	_, _ = w.Write(content)
	_, _ = w.Write(content)
}

func other(w http.ResponseWriter, _ *http.Request, honest *http.Response) {
	content, _ := io.ReadAll(honest.Body)
	begin(w, honest, int64(len(content)))
	_, _ = w.Write(bytes.Repeat([]byte("x"), len(content)))
}

func total(w http.ResponseWriter, r *http.Request, honest *http.Response) {
	var first, last, size int64
	if _, err := fmt.Sscanf(honest.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &size); err == nil {
		honest.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, 2*size))
	}
	repeat(w, r, honest)
}

// endlessLayer sends a layer with a file that does not end. It repeats one packed part,
// because a test should not wait for the registry.
func endlessLayer(w http.ResponseWriter, _ *http.Request, honest *http.Response) {
	header, zeros := &bytes.Buffer{}, make([]byte, 16<<20)
	err := tar.NewWriter(header).WriteHeader(&tar.Header{Name: "hole", Size: huge, Mode: 0o644, Format: tar.FormatGNU})
	begin(w, honest, 0)
	if err == nil {
		_, err = w.Write(packed(header.Bytes()))
	}
	for part := packed(zeros); err == nil; {
		_, err = w.Write(part)
	}
}

// packed returns a member of a gzip file.
func packed(content []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(content) // into memory
	_ = w.Close()
	return b.Bytes()
}

// endlessText sends spaces.
func endlessText(w http.ResponseWriter, _ *http.Request, honest *http.Response) {
	begin(w, honest, 0)
	for spaces, err := bytes.Repeat([]byte(" "), 1<<16), error(nil); err == nil; {
		_, err = w.Write(spaces)
	}
}

// begin sends the status and the fields of the registry's answer, but for the length; 0 for
// none.
func begin(w http.ResponseWriter, honest *http.Response, length int64) {
	for name, values := range honest.Header {
		w.Header()[name] = values
	}
	w.Header().Del("Content-Length")
	if length > 0 {
		w.Header().Set("Content-Length", fmt.Sprint(length))
	}
	w.WriteHeader(honest.StatusCode)
}
