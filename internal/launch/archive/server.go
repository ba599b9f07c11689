package archive

import (
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
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/identity"
)

// Server sends archives to nodes that lack them. Both sides of a
// connection present the same certificate, signed by an authority that exists
// only for it. The nodes receive it with their plans.
type Server struct {
	server   *http.Server
	Source   Source
	archives []Archive
	// promised counts the bytes announced by this server.
	promised atomic.Int64

	mu sync.Mutex
	// relays lists, for each archive number, the nodes that have asked for the
	// archive, in the order of their requests.
	relays map[int][]netip.AddrPort
}

// Source describes how a node connects to the archive server.
type Source struct {
	Port        uint16
	Authority   []byte
	Certificate []byte
	Key         []byte
}

// sourceName is the name in the certificate. It is not an address, because a node has
// several.
const sourceName = "archives"

// Serve starts a server for archives, which listens on a free port of ports.
func Serve(archives []Archive, ports rendezvous.PortRange) (*Server, error) {
	shared, err := identity.NewShared(sourceName, sourceName)
	if err != nil {
		return nil, err
	}
	s := &Server{
		Source:   Source{Authority: shared.Authority, Certificate: shared.Pair.Cert, Key: shared.Pair.Key},
		archives: archives, relays: map[int][]netip.AddrPort{},
	}
	config, err := s.Source.tls()
	if err != nil {
		return nil, fmt.Errorf("serve image archives: %w", err)
	}
	listener, err := hostnet.ListenTCP(netip.IPv6Unspecified(), ports)
	if err != nil {
		return nil, fmt.Errorf("serve image archives: %w", err)
	}
	s.Source.Port = uint16(listener.Addr().(*net.TCPAddr).Port)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{archive}", s.give)
	s.server = newHTTPServer(mux, config)
	go func() { _ = s.server.ServeTLS(listener, "", "") }() // until Close
	return s, nil
}

func newHTTPServer(handler http.Handler, config *tls.Config) *http.Server {
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

// Close ends the server and its connections. It does nothing if s is nil.
func (s *Server) Close() {
	if s != nil {
		s.server.Close()
	}
}

// give sends an archive, or redirects to a node that is receiving it.
func (s *Server) give(w http.ResponseWriter, r *http.Request) {
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
func (s *Server) giver(i int, r *http.Request) (netip.AddrPort, bool) {
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

// tls returns the configuration of both sides of a connection.
func (s Source) tls() (*tls.Config, error) {
	certificate, err := tls.X509KeyPair(s.Certificate, s.Key)
	if err != nil {
		return nil, err
	}
	trusted := newPool(s.Authority)
	return &tls.Config{
		Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13,
		RootCAs: trusted, ServerName: sourceName,
		ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert,
	}, nil
}
