// Package registry serves the images of a folder with an OCI layout over a
// connection of a given rate, and counts the bytes sent. It accepts no images
// and requires no authentication.
package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// refName is the annotation with an image's name in a layout's index.
const refName = "org.opencontainers.image.ref.name"

// Paths for the bench, in addition to the registry's own.
const (
	// BeginPath, followed by an image's name, reads the image into the page cache and
	// resets the counts.
	BeginPath = "/bench/begin?image="
	// SentPath returns the counts since then, as Sent in JSON.
	SentPath = "/bench/sent"
)

// Sent counts the bytes of layers and configurations that a registry has sent.
type Sent struct {
	Bytes int64 `json:"bytes"`
	// Image is the size of BeginPath's image in bytes: its layers and its configuration.
	Image int64 `json:"image"`
	// Last is the time when the last of these bytes was sent; zero if none was.
	Last time.Time `json:"last"`
}

// Registry is a running server.
type Registry struct {
	// Address is the host and port that the registry listens on: a free port, on all
	// addresses of this machine.
	Address string

	folder string
	names  map[string]descriptor
	server http.Server
	ended  chan error
	mu     sync.Mutex
	sent   Sent
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
}

// hexDigest matches the hexadecimal part of a digest, which becomes a part of a
// path.
var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`) //nolint:gochecknoglobals // a constant

// Names returns the names of the images in a folder.
func Names(folder string) (map[string]bool, error) {
	index, err := read(folder)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for name := range index {
		names[name] = true
	}
	return names, nil
}

// Digest returns the beginning of the SHA-256 digest of a folder's index in hexadecimal. It
// identifies the images. It is empty if the index cannot be read.
func Digest(folder string) string {
	content, err := os.ReadFile(filepath.Join(folder, "index.json"))
	if err != nil {
		return ""
	}
	const few = 8 // bytes
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:few])
}

func read(folder string) (map[string]descriptor, error) {
	content, err := os.ReadFile(filepath.Join(folder, "index.json"))
	if err != nil {
		return nil, fmt.Errorf("look for the images: %w", err)
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(content, &index); err != nil {
		return nil, fmt.Errorf("read the images' index in %s: %w", folder, err)
	}
	names := map[string]descriptor{}
	for _, d := range index.Manifests {
		names[d.Annotations[refName]] = d
	}
	return names, nil
}

// Serve starts a registry. bitsPerSecond limits the rate to all clients together; 0 is
// no limit. delay is added to each connection and to each request of the registry's API.
func Serve(folder string, bitsPerSecond float64, delay time.Duration) (*Registry, error) {
	names, err := read(folder)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		return nil, fmt.Errorf("listen as a registry: %w", err)
	}
	r := &Registry{Address: listener.Addr().String(), folder: folder, names: names, ended: make(chan error, 1)}
	r.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.URL.Path, "/v2/") {
			time.Sleep(delay)
		}
		r.serve(w, q)
	})
	go func() { r.ended <- r.server.Serve(newLine(listener, bitsPerSecond/8, delay)) }()
	return r, nil
}

// Port returns the port of Address.
func (r *Registry) Port() string {
	_, port, err := net.SplitHostPort(r.Address)
	if err != nil {
		return ""
	}
	return port
}

// Close ends the registry and its connections.
func (r *Registry) Close() error {
	err := r.server.Close()
	if ended := <-r.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	r.ended <- http.ErrServerClosed
	return err
}

func (r *Registry) serve(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	path := q.URL.Path
	manifest, blob := strings.LastIndex(path, "/manifests/"), strings.LastIndex(path, "/blobs/")
	switch {
	case q.Method != http.MethodGet && q.Method != http.MethodHead:
		http.Error(w, "this registry takes nothing", http.StatusMethodNotAllowed)
	case path == "/v2/":
		w.WriteHeader(http.StatusOK)
	case path == "/bench/begin":
		r.begin(w, q.URL.Query().Get("image"))
	case path == SentPath:
		r.mu.Lock()
		defer r.mu.Unlock()
		_ = json.NewEncoder(w).Encode(r.sent) // a client notices an incomplete response
	case strings.HasPrefix(path, "/v2/") && manifest > 0:
		r.manifest(w, q, strings.TrimPrefix(path[:manifest], "/v2/"), path[manifest+len("/manifests/"):])
	case strings.HasPrefix(path, "/v2/") && blob > 0:
		r.blob(&counter{ResponseWriter: w, registry: r}, q, path[blob+len("/blobs/"):], "application/octet-stream")
	default:
		http.NotFound(w, q)
	}
}

func (r *Registry) manifest(w http.ResponseWriter, q *http.Request, name, reference string) {
	if strings.Contains(reference, ":") {
		kind := "application/vnd.oci.image.manifest.v1+json"
		for _, d := range r.names {
			if d.Digest == reference {
				kind = d.MediaType
			}
		}
		r.blob(w, q, reference, kind)
		return
	}
	d, ok := r.names[name+":"+reference]
	if !ok {
		http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"there is no such image"}]}`, http.StatusNotFound)
		return
	}
	r.blob(w, q, d.Digest, d.MediaType)
}

// open opens a blob of the folder.
func (r *Registry) open(digest string) (*os.File, error) {
	hex, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || !hexDigest.MatchString(hex) {
		return nil, fmt.Errorf("%q is not a digest", digest)
	}
	return os.Open(filepath.Join(r.folder, "blobs", "sha256", hex))
}

func (r *Registry) blob(w http.ResponseWriter, q *http.Request, digest, kind string) {
	file, err := r.open(digest)
	if err != nil {
		http.NotFound(w, q)
		return
	}
	defer file.Close()
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", digest)
	http.ServeContent(w, q, "", time.Time{}, file)
}

// begin reads all of an image, and resets the counts.
func (r *Registry) begin(w http.ResponseWriter, name string) {
	d, ok := r.names[name]
	if !ok {
		http.Error(w, "there is no image "+name, http.StatusNotFound)
		return
	}
	size, err := r.warm(d.Digest)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = Sent{Image: size}
}

// warm reads the layers and the configuration of an image, so that they are in the page
// cache. It returns their size in bytes.
func (r *Registry) warm(digest string) (size int64, err error) {
	file, err := r.open(digest)
	if err != nil {
		return 0, err
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	err = json.NewDecoder(file).Decode(&manifest)
	if err := errors.Join(err, file.Close()); err != nil {
		return 0, fmt.Errorf("read manifest %s: %w", digest, err)
	}
	for _, part := range append(manifest.Layers, manifest.Config) {
		file, err := r.open(part.Digest)
		if err != nil {
			return 0, err
		}
		n, err := io.Copy(io.Discard, file)
		if err := errors.Join(err, file.Close()); err != nil {
			return 0, fmt.Errorf("read %s: %w", part.Digest, err)
		}
		size += n
	}
	return size, nil
}

// counter counts the sent bytes of blobs. It hides the file from net/http, which would
// otherwise bypass the shaper with sendfile(2).
type counter struct {
	http.ResponseWriter
	registry *Registry
	refused  bool
}

func (c *counter) WriteHeader(code int) {
	c.refused = code >= http.StatusBadRequest
	c.ResponseWriter.WriteHeader(code)
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	if c.refused {
		return n, err
	}
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	c.registry.sent.Bytes += int64(n)
	c.registry.sent.Last = time.Now()
	return n, err
}
