package launch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
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
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			return nil, fmt.Errorf("read image archive: %w", err)
		}
		if info.IsDir() {
			return nil, fmt.Errorf("read image archive: %s is a directory; pack it with tar", path)
		}
		found = append(found, archive{Name: name, Path: path, Size: info.Size(), Modified: info.ModTime()})
	}
	return found, nil
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
			Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
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
