package rendezvous

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"time"
)

const (
	// application is the ALPN protocol. It keeps other TLS servers and clients out
	// before any proof.
	application = "berth-rendezvous/1"
	// bindingLabel is the label of the exported keying material (RFC 8446, 7.5)
	// that credentials contain.
	bindingLabel = "EXPORTER-berth-rendezvous"
	bindingSize  = 32
)

// serverTLS makes the certificate that a TLS server needs. Its key stays in this
// process. Nobody checks the certificate, see clientTLS.
func serverTLS() (*tls.Config, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key for the rendezvous: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(365 * 24 * time.Hour),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for the rendezvous: %w", err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{application},
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: private}},
		// Every connection must authenticate.
		SessionTicketsDisabled: true,
	}, nil
}

// clientTLS accepts any certificate. A credential with the connection's binding
// authenticates the other side. A man in the middle has two connections with
// different bindings, whatever the certificates.
func clientTLS() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{application},
		InsecureSkipVerify: true,
	}
}

// secure performs the TLS handshake and returns the binding.
func secure(ctx context.Context, conn *tls.Conn) ([]byte, error) {
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	state := conn.ConnectionState()
	// TLS does not refuse a client that names no application.
	if state.NegotiatedProtocol != application {
		return nil, fmt.Errorf("the other side speaks %q, want %q", state.NegotiatedProtocol, application)
	}
	return state.ExportKeyingMaterial(bindingLabel, nil, bindingSize)
}

// closeWith closes the connection when the context ends, which ends all reads and
// writes. The returned function cancels this, and reports whether the connection is
// still open.
func closeWith(ctx context.Context, conn net.Conn) func() bool {
	return context.AfterFunc(ctx, func() { conn.Close() })
}
