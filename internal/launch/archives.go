package launch

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
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
	"strconv"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/pki"
	"berth.dev/berth/internal/rendezvous"
)

// archive is a file with images on the head.
type archive struct {
	// Name is what the user calls its image, if anything.
	Name string
	// Path is absolute. Size, in bytes, and Modified tell whether another
	// node's file of that path is the same.
	Path     string
	Size     int64
	Modified time.Time
}

// findArchives looks at the archives of the command line.
func findArchives(images []string) ([]archive, error) {
	var found []archive
	for _, image := range images {
		name, path, _ := cluster.SplitImage(image)
		info, err := statReadable(path)
		if err == nil && info.IsDir() {
			err = fmt.Errorf("%s is a directory; pack it with tar", path)
		}
		if err == nil {
			err = checkArchive(path)
		}
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			return nil, fmt.Errorf("read image archive: %w", err)
		}
		found = append(found, archive{Name: name, Path: path, Size: info.Size(), Modified: info.ModTime()})
	}
	return found, nil
}

// checkArchive looks at the beginning of a file: what is no archive shows there,
// before a cluster is started for it.
func checkArchive(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	start := bufio.NewReader(file)
	magic, _ := start.Peek(64)
	if bytes.HasPrefix(magic, []byte{0x1f, 0x8b}) || bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return nil // gzip, zstd
	}
	if len(magic) == 64 && bytes.HasPrefix(magic[32:], []byte("SIF_MAGIC\x00")) {
		return nil // behind a line for the shell
	}
	if _, err := tar.NewReader(start).Next(); err != nil {
		return fmt.Errorf("%s is no tar archive, and no SIF file: %w; 'docker save' and 'skopeo copy ... oci-archive:FILE' make one", path, err)
	}
	return nil
}

// here tells whether this node has the same file.
func (a archive) here() bool {
	info, err := statReadable(a.Path)
	return err == nil && info.Mode().IsRegular() && info.Size() == a.Size && info.ModTime().Equal(a.Modified)
}

// statReadable looks at a file that this user can read.
func statReadable(path string) (os.FileInfo, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return file.Stat()
}

// archiveServer gives the archives to nodes that do not have them. Both sides
// show certificates of an authority that exists for this alone; what a client
// needs goes to the nodes with their plans.
type archiveServer struct {
	server *http.Server
	source archiveSource
}

// archiveSource is where a node gets archives.
type archiveSource struct {
	Port        uint16
	Authority   []byte
	Certificate []byte
	Key         []byte
}

// sourceName is the server's name in its certificate. It is reached at several
// addresses.
const sourceName = "archives"

func serveArchives(archives []archive, ports rendezvous.PortRange) (*archiveServer, error) {
	authority, err := pki.NewAuthority(sourceName)
	if err != nil {
		return nil, err
	}
	own, err := authority.Issue(pki.Identity{CommonName: sourceName, Names: []string{sourceName}})
	if err != nil {
		return nil, err
	}
	client, err := authority.Issue(pki.Identity{CommonName: "node"})
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(own.Cert, own.Key)
	if err != nil {
		return nil, fmt.Errorf("serve image archives: %w", err)
	}
	listener, err := listenTCP(netip.IPv6Unspecified(), ports)
	if err != nil {
		return nil, fmt.Errorf("serve image archives: %w", err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority.Cert)
	mux := http.NewServeMux()
	for i, a := range archives {
		mux.HandleFunc("GET /"+strconv.Itoa(i), func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, a.Path) })
	}
	s := &archiveServer{
		server: &http.Server{
			Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
			TLSConfig: &tls.Config{
				Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13,
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted,
			},
		},
		source: archiveSource{
			Port: uint16(listener.Addr().(*net.TCPAddr).Port), Authority: authority.Cert,
			Certificate: client.Cert, Key: client.Key,
		},
	}
	go func() { _ = s.server.ServeTLS(listener, "", "") }() // until Close
	return s, nil
}

func (s *archiveServer) close() {
	if s != nil {
		s.server.Close()
	}
}

// fetch copies an archive of the head's into a directory and returns the path
// of the copy, which has the same base name: an image may be named after it.
func (s archiveSource) fetch(ctx context.Context, head netip.Addr, i int, a archive, dir string) (string, error) {
	certificate, err := tls.X509KeyPair(s.Certificate, s.Key)
	if err != nil {
		return "", err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(s.Authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{certificate}, RootCAs: trusted, ServerName: sourceName, MinVersion: tls.VersionTLS13,
	}}
	defer transport.CloseIdleConnections()
	url := "https://" + netip.AddrPortFrom(head, s.Port).String() + "/" + strconv.Itoa(i)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the head answers %s", answer.Status)
	}
	path := filepath.Join(dir, filepath.Base(a.Path))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	size, err := io.Copy(file, answer.Body)
	if err := errors.Join(err, file.Close()); err != nil {
		return "", err
	}
	if size != a.Size {
		return "", fmt.Errorf("%d of %d bytes came: the file has changed meanwhile", size, a.Size)
	}
	return path, nil
}
