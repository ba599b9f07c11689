package launch

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/identity"
)

// archive is an image file on the head, or a folder that holds an unpacked image
// or an OCI layout. Every node has to see such a folder.
type archive struct {
	// Name is the user's name for the image. It may be empty.
	Name string
	// Path is absolute. Another node's file at that path is the same file if
	// Size, in bytes, and Modified agree. For an OCI layout they describe its
	// index. For other folders they are zero.
	Path     string
	Size     int64
	Modified time.Time
	// Root marks a folder, SIF a SIF file. Nodes may use both in place.
	Root, SIF bool
}

// findArchives checks the archives that the command line names.
func findArchives(images []string) ([]archive, error) {
	var found []archive
	for _, image := range images {
		name, path, _ := cluster.SplitImage(image)
		info, err := statReadable(path)
		a := archive{Name: name}
		switch {
		case err == nil && info.IsDir():
			a.Root = true
			info, err = checkFolder(path)
		case err == nil:
			a.SIF, err = checkArchive(path)
		}
		if err == nil {
			a.Path, err = filepath.Abs(path)
		}
		if err != nil {
			return nil, fmt.Errorf("read image archive: %w", err)
		}
		if info != nil {
			a.Size, a.Modified = info.Size(), info.ModTime()
		}
		found = append(found, a)
	}
	return found, nil
}

// ofRoots lists folders at the root of an image. Every image has some of them.
var ofRoots = []string{"bin", "etc", "lib", "usr", "sbin", "opt", ".singularity.d"}

// These files mark a folder as an OCI layout and list its content.
const (
	layoutFile  = "oci-layout"
	layoutIndex = "index.json"
)

// checkFolder accepts a folder with an unpacked image or an OCI layout, and
// refuses a folder named by mistake. For a layout it returns the index.
func checkFolder(path string) (index os.FileInfo, err error) {
	has := func(name string) bool {
		_, err := os.Lstat(filepath.Join(path, name))
		return err == nil
	}
	if has(layoutFile) {
		return statReadable(filepath.Join(path, layoutIndex))
	}
	if slices.ContainsFunc(ofRoots, has) {
		return nil, nil
	}
	return nil, fmt.Errorf("%s is a folder without an unpacked image: it has no bin, usr or etc, and no file %s", path, layoutFile)
}

// checkArchive checks the beginning of a file, so that a file that is no archive
// is refused before a cluster starts for it.
func checkArchive(path string) (isSIF bool, err error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	start := bufio.NewReader(file)
	magic, _ := start.Peek(64)
	if bytes.HasPrefix(magic, []byte{0x1f, 0x8b}) || bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return false, nil // gzip, zstd
	}
	if len(magic) == 64 && bytes.HasPrefix(magic[32:], []byte("SIF_MAGIC\x00")) {
		return true, nil // behind a line for the shell
	}
	if _, err := tar.NewReader(start).Next(); err != nil {
		return false, fmt.Errorf("%s is neither a tar archive nor a SIF file: %w; 'docker save' and 'skopeo copy ... oci-archive:FILE' make one", path, err)
	}
	return false, nil
}

// here reports whether this node has the same file.
func (a archive) here() bool {
	path := a.Path
	switch {
	case a.Root && a.Modified.IsZero(): // an unpacked image has no file to compare
		info, err := statReadable(path)
		return err == nil && info.IsDir()
	case a.Root:
		path = filepath.Join(path, layoutIndex)
	}
	info, err := statReadable(path)
	return err == nil && info.Mode().IsRegular() && info.Size() == a.Size && info.ModTime().Equal(a.Modified)
}

// CheckScript checks early that the script exists and a shell can read it.
func CheckScript(path string) error {
	info, err := statReadable(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", path)
	}
	if err != nil {
		return exitcode.Wrap(exitcode.NoInput, fmt.Errorf("read the script: %w", err))
	}
	return nil
}

// statReadable describes a file that this user can read.
func statReadable(path string) (os.FileInfo, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return file.Stat()
}

// archiveServer sends archives to nodes that lack them. Both sides of a
// connection present the same certificate, signed by an authority that exists
// only for it. The nodes receive it with their plans.
type archiveServer struct {
	server   *http.Server
	source   archiveSource
	archives []archive
	// promised counts the bytes announced by this server.
	promised atomic.Int64

	mu sync.Mutex
	// relays lists, for each archive number, the nodes that have asked for the
	// archive, in the order of their requests.
	relays map[int][]netip.AddrPort
}

// archiveSource describes how a node connects to the archive server.
type archiveSource struct {
	Port        uint16
	Authority   []byte
	Certificate []byte
	Key         []byte
}

// sourceName is the name in the certificate. It is no address, because a node has
// several.
const sourceName = "archives"

func serveArchives(archives []archive, ports rendezvous.PortRange) (*archiveServer, error) {
	shared, err := identity.NewShared(sourceName, sourceName)
	if err != nil {
		return nil, err
	}
	s := &archiveServer{
		source:   archiveSource{Authority: shared.Authority, Certificate: shared.Pair.Cert, Key: shared.Pair.Key},
		archives: archives, relays: map[int][]netip.AddrPort{},
	}
	config, err := s.source.tls()
	if err != nil {
		return nil, fmt.Errorf("serve image archives: %w", err)
	}
	listener, err := hostnet.ListenTCP(netip.IPv6Unspecified(), ports)
	if err != nil {
		return nil, fmt.Errorf("serve image archives: %w", err)
	}
	s.source.Port = uint16(listener.Addr().(*net.TCPAddr).Port)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{archive}", s.give)
	s.server = newArchiveServer(mux, config)
	go func() { _ = s.server.ServeTLS(listener, "", "") }() // until Close
	return s, nil
}

func newArchiveServer(handler http.Handler, config *tls.Config) *http.Server {
	return &http.Server{
		Handler: handler, TLSConfig: config, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
}

func newPool(authority []byte) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	return pool
}

func (s *archiveServer) close() {
	if s != nil {
		s.server.Close()
	}
}

// give sends an archive, or redirects to a node that is receiving it.
func (s *archiveServer) give(w http.ResponseWriter, r *http.Request) {
	i, err := strconv.Atoi(r.PathValue("archive"))
	from, badFrom := strconv.ParseInt(r.FormValue("from"), 10, 64)
	if errors.Join(err, badFrom) != nil || i < 0 || i >= len(s.archives) {
		http.NotFound(w, r)
		return
	}
	if giver, ok := s.giver(i, r); ok {
		http.Redirect(w, r, fmt.Sprintf("https://%s/%d?from=%d", giver, i, from), http.StatusTemporaryRedirect)
		return
	}
	if s.archives[i].Root {
		http.NotFound(w, r)
		return
	}
	file, err := os.Open(s.archives[i].Path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || from < 0 || from > info.Size() {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size()-from, 10))
	s.promised.Add(info.Size() - from)
	_, _ = io.Copy(w, io.NewSectionReader(file, from, info.Size()-from)) // on an error the node asks again
}

// giver returns the node that should send the archive to a node that passes it on
// in turn, or false if that is the head. The head and each receiving node send it
// to two nodes. The sender always asked earlier than the receiver, so no node
// waits for itself.
func (s *archiveServer) giver(i int, r *http.Request) (netip.AddrPort, bool) {
	port, err := strconv.ParseUint(r.FormValue("relay"), 10, 16)
	client, badClient := netip.ParseAddrPort(r.RemoteAddr)
	if errors.Join(err, badClient) != nil {
		return netip.AddrPort{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	place := len(s.relays[i])
	s.relays[i] = append(s.relays[i], netip.AddrPortFrom(client.Addr().Unmap(), uint16(port)))
	if place < 2 {
		return netip.AddrPort{}, false
	}
	return s.relays[i][place/2-1], true
}
