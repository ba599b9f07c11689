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
	// application keeps other TLS servers and clients out before any proof.
	application = "berth-rendezvous/1"
	// bindingLabel names the exported keying material (RFC 8446, 7.5) that
	// credentials hold.
	bindingLabel = "EXPORTER-berth-rendezvous"
	bindingSize  = 32
)

// serverTLS makes the certificate that TLS wants of a server. Its key lives in
// this process only; nobody looks at the certificate, see clientTLS.
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
		// Every connection proves itself.
		SessionTicketsDisabled: true,
	}, nil
}

// clientTLS accepts any certificate: who is at the other end is proven by a
// credential that holds the connection's binding. It differs for each of the
// two connections of somebody who sits in between, whatever their certificates.
func clientTLS() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{application},
		InsecureSkipVerify: true,
	}
}

// secure does the TLS handshake and returns the binding.
func secure(ctx context.Context, conn *tls.Conn) ([]byte, error) {
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	state := conn.ConnectionState()
	// A client that names no application is not refused by TLS itself.
	if state.NegotiatedProtocol != application {
		return nil, fmt.Errorf("the other side speaks %q, want %q", state.NegotiatedProtocol, application)
	}
	return state.ExportKeyingMaterial(bindingLabel, nil, bindingSize)
}

// closeWith closes the connection when the context ends, which ends what reads
// from it or writes to it. The returned function calls that off, and tells
// whether it came in time.
func closeWith(ctx context.Context, conn net.Conn) func() bool {
	return context.AfterFunc(ctx, func() { conn.Close() })
}
