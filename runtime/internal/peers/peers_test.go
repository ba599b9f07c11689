package peers

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
)

// node is one node's store, as containerd has it.
type node struct {
	*Store
	counts *Counts
	db     *metadata.DB
}

// start starts n nodes that share layers.
func start(t *testing.T, n int) []*node {
	t.Helper()
	config := Config{
		Certificate: filepath.Join(t.TempDir(), "peers.crt"), Key: filepath.Join(t.TempDir(), "peers.key"),
		Authority: filepath.Join(t.TempDir(), "peers-ca.crt"),
	}
	certify(t, config)
	listeners := make([]net.Listener, n)
	for i := range listeners {
		var err error
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		config.Nodes = append(config.Nodes, listeners[i].Addr().String())
	}
	nodes := make([]*node, n)
	for i := range nodes {
		config.Self = i
		nodes[i] = openNode(t, config, listeners[i])
	}
	return nodes
}

func openNode(t *testing.T, config Config, listener net.Listener) *node {
	t.Helper()
	n := &node{counts: &Counts{}}
	var err error
	if n.Store, err = open(t.Context(), t.TempDir(), config, n.counts, listener); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	database, err := bolt.Open(filepath.Join(t.TempDir(), "meta.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { database.Close() })
	n.db = metadata.NewDB(database, n.Store, nil)
	if err := n.db.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

// certify writes the certificate files that all nodes have.
func certify(t *testing.T, config Config) {
	t.Helper()
	issue := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			parent, signer = template, key
		}
		template.NotAfter = time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return certificate, key
	}
	write := func(path, kind string, der []byte) {
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ca, caKey := issue(&x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil, nil)
	own, key := issue(&x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, ca, caKey)
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(config.Authority, "CERTIFICATE", ca.Raw)
	write(config.Certificate, "CERTIFICATE", own.Raw)
	write(config.Key, "EC PRIVATE KEY", encoded)
}

// pull gets a layer as containerd does.
func (n *node) pull(ctx context.Context, from remotes.Fetcher, layer ocispec.Descriptor) error {
	return remotes.Fetch(namespaces.WithNamespace(ctx, "k8s.io"), n.db.ContentStore(), from, layer)
}

func (n *node) has(t *testing.T, layer ocispec.Descriptor, want []byte) {
	t.Helper()
	got, err := content.ReadBlob(namespaces.WithNamespace(t.Context(), "k8s.io"), n.db.ContentStore(), layer)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d: %v", len(got), len(want), err)
	}
}

// registry serves one layer, and counts requests.
type registry struct {
	layer []byte
	// gate, if set, releases the next part of the layer.
	gate chan int
	// opened lists the requested offsets; sent counts bytes.
	mu     sync.Mutex
	opened []int64
	sent   atomic.Int64
	fails  error
}

func (r *registry) Fetch(ctx context.Context, _ ocispec.Descriptor) (io.ReadCloser, error) {
	if r.fails != nil {
		return nil, r.fails
	}
	return &download{registry: r, ctx: ctx}, nil
}

// download supports Seek, like that of containerd, and sends its request at the
// first read.
type download struct {
	*registry
	ctx     context.Context
	offset  int64
	begun   bool
	allowed int
}

func (d *download) Seek(offset int64, _ int) (int64, error) { d.offset = offset; return offset, nil }
func (d *download) Close() error                            { return nil }

func (d *download) Read(p []byte) (int, error) {
	if !d.begun {
		d.begun = true
		d.mu.Lock()
		d.opened = append(d.opened, d.offset)
		d.mu.Unlock()
	}
	if d.offset == int64(len(d.layer)) {
		return 0, io.EOF
	}
	if d.gate != nil && d.allowed == 0 {
		select {
		case d.allowed = <-d.gate:
		case <-d.ctx.Done():
			return 0, d.ctx.Err()
		}
	}
	if d.gate != nil && d.allowed > 0 {
		p = p[:min(len(p), d.allowed)]
	}
	n := copy(p, d.layer[d.offset:])
	d.offset += int64(n)
	d.sent.Add(int64(n))
	if d.allowed > 0 {
		d.allowed -= n
	}
	return n, nil
}

func (r *registry) asked() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.opened)
}

func newLayer(size int) ([]byte, ocispec.Descriptor) {
	layer := make([]byte, size)
	source := mathrand.NewChaCha8([32]byte{1})
	_, _ = source.Read(layer)
	return layer, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(layer), Size: int64(size)}
}

func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

func TestOneSharedCopy(t *testing.T) {
	nodes := start(t, 5)
	layer, desc := newLayer(3 << 20)
	from := &registry{layer: layer}
	var pulls sync.WaitGroup
	for _, n := range nodes[:4] {
		pulls.Go(func() {
			if err := n.pull(t.Context(), from, desc); err != nil {
				t.Error(err)
			}
		})
	}
	pulls.Wait()
	// A node that asks later gets it from the others, too.
	if err := nodes[4].pull(t.Context(), from, desc); err != nil {
		t.Error(err)
	}
	var taken, given uint64
	for _, n := range nodes {
		n.has(t, desc, layer)
		taken += n.counts.Taken.Load()
		given += n.counts.Given.Load()
		if most := uint64(2 * len(layer)); n.counts.Given.Load() > most {
			t.Errorf("one node gave %d bytes, want at most %d", n.counts.Given.Load(), most)
		}
	}
	if sent := from.sent.Load(); sent != desc.Size {
		t.Errorf("the registry sent %d bytes, want %d", sent, desc.Size)
	}
	if want := uint64(4 * len(layer)); taken != want || given != want {
		t.Errorf("%d bytes taken, %d given, want %d", taken, given, want)
	}
}

// begin lets the first node receive half of a layer from the registry, and waits
// until the others have received that half.
func begin(t *testing.T, nodes []*node, from *registry, desc ocispec.Descriptor) (stop context.CancelFunc, ends []chan error) {
	t.Helper()
	from.gate = make(chan int, 1)
	from.gate <- len(from.layer) / 2
	ctx, stop := context.WithCancel(t.Context())
	for i, n := range nodes {
		end := make(chan error, 1)
		ends = append(ends, end)
		go func() { end <- n.pull(ctx, from, desc) }()
		poll(t, fmt.Sprintf("node %d has not half of the layer", i), func() bool {
			n.mu.Lock()
			in := n.receiving[desc.Digest]
			n.mu.Unlock()
			if in == nil {
				return false
			}
			in.mu.Lock()
			defer in.mu.Unlock()
			return in.received == desc.Size/2
		})
		ctx = t.Context() // only the first node is stopped
	}
	return stop, ends
}

func TestStreamsWhileReceiving(t *testing.T) {
	nodes := start(t, 3)
	layer, desc := newLayer(4 << 20)
	from := &registry{layer: layer}
	stop, ends := begin(t, nodes, from, desc)
	defer stop()
	from.gate <- len(layer)
	for i, end := range ends {
		if err := <-end; err != nil {
			t.Error(err)
		}
		nodes[i].has(t, desc, layer)
	}
	if sent := from.sent.Load(); sent != desc.Size {
		t.Errorf("the registry sent %d bytes, want %d", sent, desc.Size)
	}
}

// TestTakeover: the node that receives the layer stops in the middle, because its
// pull is cancelled or the node dies. Another node continues at the same offset.
func TestTakeover(t *testing.T) {
	for name, end := range map[string]func(stop func(), first *node){
		"cancelled": func(stop func(), _ *node) { stop() },
		"dead":      func(stop func(), first *node) { first.Close(); stop() },
	} {
		t.Run(name, func(t *testing.T) {
			nodes := start(t, 4)
			layer, desc := newLayer(4 << 20)
			// The first node also owns the digest, so its directory is lost with
			// it.
			byOwner(nodes, desc.Digest)
			from := &registry{layer: layer}
			stop, ends := begin(t, nodes, from, desc)
			end(stop, nodes[0])
			if err := <-ends[0]; !errors.Is(err, context.Canceled) {
				t.Errorf("the first pull: %v", err)
			}
			poll(t, "nobody takes over", func() bool { return len(from.asked()) == 2 })
			from.gate <- len(layer)
			for i, end := range ends[1:] {
				if err := <-end; err != nil {
					t.Error(err)
				}
				nodes[i+1].has(t, desc, layer)
			}
			if asked := from.asked(); !slices.Equal(asked, []int64{0, desc.Size / 2}) || from.sent.Load() != desc.Size {
				t.Errorf("the registry was asked at %v and sent %d bytes, want one copy", asked, from.sent.Load())
			}
		})
	}
}

// byOwner puts the owner of a digest first, and its deputy second.
func byOwner(nodes []*node, dgst digest.Digest) {
	order := owners(dgst, len(nodes))
	slices.SortFunc(nodes, func(a, b *node) int {
		return slices.Index(order, a.group.self) - slices.Index(order, b.group.self)
	})
}

// TestOwnerLost: the nodes still share a layer after the owner of its digest was
// lost.
func TestOwnerLost(t *testing.T) {
	nodes := start(t, 4)
	layer, desc := newLayer(100_000)
	byOwner(nodes, desc.Digest)
	from := &registry{layer: layer}
	for i, n := range nodes {
		if i == 2 {
			nodes[0].Close()
		}
		if err := n.pull(t.Context(), from, desc); err != nil {
			t.Error(err)
		}
		n.has(t, desc, layer)
	}
	if sent := from.sent.Load(); sent != desc.Size {
		t.Errorf("the registry sent %d bytes, want %d", sent, desc.Size)
	}
}

func TestNoOtherProcesses(t *testing.T) {
	nodes := start(t, 3)
	layer, desc := newLayer(100_000)
	for _, n := range nodes[1:] {
		n.Close()
	}
	from := &registry{layer: layer}
	if err := nodes[0].pull(t.Context(), from, desc); err != nil {
		t.Error(err)
	}
	nodes[0].has(t, desc, layer)

	// The user gets the error of the registry itself.
	other, otherDesc := newLayer(100_001)
	refused := errors.New("you are not allowed to")
	if err := nodes[0].pull(t.Context(), &registry{layer: other, fails: refused}, otherDesc); !errors.Is(err, refused) {
		t.Errorf("error %v, want %v", err, refused)
	}
}

// TestSilence: a stopped node sends nothing, and its connections stay open.
func TestSilence(t *testing.T) {
	nodes := start(t, 2)
	nodes[1].group.silence = 200 * time.Millisecond
	layer, desc := newLayer(4 << 20)
	from := &registry{layer: layer}
	stop, ends := begin(t, nodes, from, desc)
	poll(t, "the second node waits for ever", func() bool { return len(from.asked()) == 2 })
	stop()
	<-ends[0]
	from.gate <- len(layer)
	if err := <-ends[1]; err != nil {
		t.Error(err)
	}
	nodes[1].has(t, desc, layer)
}

func TestDamageDoesNotSpread(t *testing.T) {
	nodes := start(t, 2)
	layer, desc := newLayer(4 << 20)
	if err := nodes[0].pull(t.Context(), &registry{layer: layer}, desc); err != nil {
		t.Fatal(err)
	}
	damage(t, nodes[0].Store, desc.Digest)
	from := &registry{layer: layer}
	if err := nodes[1].pull(t.Context(), from, desc); err != nil {
		t.Error(err)
	}
	nodes[1].has(t, desc, layer)
	if asked := from.asked(); !slices.Equal(asked, []int64{0}) {
		t.Errorf("the registry was asked at %v, want from the start", asked)
	}
}

// TestDamagedHalf: the half from another node is damaged, which shows only at the
// end.
func TestDamagedHalf(t *testing.T) {
	nodes := start(t, 2)
	layer, desc := newLayer(4 << 20)
	from := &registry{layer: slices.Clone(layer)}
	from.layer[5]++
	stop, ends := begin(t, nodes, from, desc)
	stop()
	<-ends[0]
	from.gate <- len(layer)
	if err := <-ends[1]; err == nil {
		t.Error("damaged content is taken for good")
	}
	good := &registry{layer: layer}
	if err := nodes[1].pull(t.Context(), good, desc); err != nil {
		t.Error(err)
	}
	nodes[1].has(t, desc, layer)
}

func damage(t *testing.T, s *Store, dgst digest.Digest) {
	t.Helper()
	path := s.blobOf(dgst)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt([]byte("damage"), 1000); err != nil {
		t.Fatal(err)
	}
}

// TestRefused: a client without a certificate of the run gets nothing, and
// malformed requests are refused.
func TestRefused(t *testing.T) {
	nodes := start(t, 2)
	unknown := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	_, desc := newLayer(10)
	if answer, err := unknown.Get("https://" + nodes[0].group.nodes[0] + "/layer/" + desc.Digest.String() + "?from=0"); err == nil {
		t.Errorf("a client without a certificate is answered: %s", answer.Status)
	}
	for path, want := range map[string]string{
		"/layer/" + desc.Digest.String() + "?from=0":             "404",
		"/layer/" + desc.Digest.String():                         "400",
		"/layer/..%2F..%2Fsecret?from=0":                         "400",
		"/giver/" + desc.Digest.String() + "?node=2":             "400",
		"/giver/" + desc.Digest.String() + "?node=1&without=x":   "400",
		"/giver/sha256:1?node=1":                                 "400",
		"/giver/" + desc.Digest.String() + "?node=1&without=0":   "",
		"/giver/" + desc.Digest.String() + "?node=1&again=false": "",
	} {
		answer, err := nodes[1].group.get(t.Context(), 0, path)
		switch status := (*statusError)(nil); {
		case errors.As(err, &status):
			if want == "" || status.status[:3] != want {
				t.Errorf("GET %s: %v, want %s", path, err, want)
			}
		case err != nil:
			t.Errorf("GET %s: %v", path, err)
		default:
			answer.Body.Close()
			if want != "" {
				t.Errorf("GET %s: %s, want %s", path, answer.Status, want)
			}
		}
	}
}

func TestLayerOf(t *testing.T) {
	_, desc := newLayer(10)
	for ref, want := range map[string]bool{
		"k8s.io/7/layer-" + desc.Digest.String():    true,
		"k8s.io/7/unknown-" + desc.Digest.String():  true,
		"k8s.io/7/manifest-" + desc.Digest.String(): false,
		"k8s.io/7/index-" + desc.Digest.String():    false,
		"k8s.io/7/config-" + desc.Digest.String():   false,
		"k8s.io/7/berth-" + desc.Digest.String():    false,
		"k8s.io/7/layer-sha256:1":                   false,
		"k8s.io/7/tar-something":                    false,
		"":                                          false,
	} {
		if _, got := layerOf(ref); got != want {
			t.Errorf("%s: %v, want %v", ref, got, want)
		}
	}
}
