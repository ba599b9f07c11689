package store

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/site/siteconf"
)

// A failed request to etcd reports an expired certificate, of etcd or of this host.
func TestRefusedEtcdConnectionIsExplained(t *testing.T) {
	old, valid := certificate(t, -time.Hour), certificate(t, time.Hour)
	for _, c := range []struct {
		etcd, host siteconf.Etcd
		want       string
	}{
		{old, valid, "x509: certificate has expired"},
		{valid, old, "tls: expired certificate"},
	} {
		t.Run(c.want, func(t *testing.T) {
			config := siteconf.Default()
			config.Etcd = siteconf.Etcd{Endpoints: []string{"https://" + refuser(t, c.etcd, c.host)}, CA: c.etcd.CA, Cert: c.host.Cert, Key: c.host.Key}
			s, err := Open(config)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for s.refused.Load() == nil {
				short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				_, err = s.Allocate(short, request(1, 1000))
				cancel()
				if t.Context().Err() != nil {
					t.Fatal(err)
				}
			}
			short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err = s.Allocate(short, request(1, 1000))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it says: %v, want %s", err, c.want)
			}
		})
	}
}

// refuser returns the address of a server with etcd's certificate that trusts the
// host's.
func refuser(t *testing.T, etcd, host siteconf.Etcd) string {
	t.Helper()
	keys, err := tls.LoadX509KeyPair(etcd.Cert, etcd.Key)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := os.ReadFile(host.CA)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(trusted)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{keys}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			// The server reports its judgement of the certificate in an alert.
			_ = conn.(*tls.Conn).HandshakeContext(t.Context())
			conn.Close()
		}
	}()
	return l.Addr().String()
}

// certificate returns a self-signed certificate for all sides that expires after that
// time.
func certificate(t *testing.T, ends time.Duration) siteconf.Etcd {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(ends),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := siteconf.Etcd{CA: filepath.Join(dir, "crt"), Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key")}
	for name, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: signed}, files.Key: {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}
