package interlink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

// closeLimit bounds the wait for running requests when the server ends. A request that
// follows a log may never end.
const closeLimit = 2 * time.Second

// Serve serves requests until ctx ends, and keeps the connection to the cluster open. It
// returns an error if the listener fails.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() { s.connection.keep(ctx) })
	defer keeping.Wait()
	defer cancel()
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve interLink's requests: %w", err)
	case <-ctx.Done():
	}
	limited, release := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer release()
	if server.Shutdown(limited) != nil {
		server.Close()
	}
	return nil
}

// ListenUnix listens on a unix socket that only this user can open. It replaces the
// socket of a server that has ended, but no other file.
func ListenUnix(path string) (net.Listener, error) {
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return nil, fmt.Errorf("listen on %s: another server listens there", path)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("listen on the socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("listen on %s: it is a file; name a path that does not exist", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replace the socket of an ended server: %w", err)
		}
	}
	// The mode must be right from the start, and only the umask can do that.
	old := syscall.Umask(0o177)
	listener, err := net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on the socket: %w", err)
	}
	return listener, nil
}

// TLSFiles holds the paths of PEM files for mutual TLS.
type TLSFiles struct {
	// Cert and Key are the certificate and key of the server. Every client with a
	// certificate that ClientCA has signed may start pods.
	Cert, Key, ClientCA string
}

// ListenTLS listens on a TCP address, and accepts only clients with a certificate of the
// client CA. It reads the files again for each connection, so that renewed certificates
// take effect.
func ListenTLS(address string, files TLSFiles) (net.Listener, error) {
	if _, err := files.load(); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for interLink: %w", err)
	}
	return tls.NewListener(listener, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.load() },
	}), nil
}

// load returns the TLS configuration of the files.
func (f TLSFiles) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("read the server's certificate and key: %w", err)
	}
	ca, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("read the CA certificate of clients: %w", err)
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("read the CA certificate of clients: %s has no certificate", f.ClientCA)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{"http/1.1"},
	}, nil
}
