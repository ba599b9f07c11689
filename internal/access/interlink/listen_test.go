package interlink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/pki"
)

// TestListenUnix checks that only this user can open the socket. The socket of a server
// that was killed is replaced. That of a running server, or a file, is not.
func TestListenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %v, %v", info.Mode(), err)
	}
	if _, err := ListenUnix(path); err == nil || !strings.Contains(err.Error(), "another server listens there") {
		t.Errorf("a second server: %v", err)
	}
	first.(*net.UnixListener).SetUnlinkOnClose(false) // like a server that was killed
	first.Close()
	second, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(path); err == nil || !strings.Contains(err.Error(), "it is a file") {
		t.Errorf("in place of a file: %v", err)
	}
}

// TestListenTLS checks that only clients with a certificate of the client CA are served.
func TestListenTLS(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	authority := func() *pki.Authority {
		a, err := pki.NewAuthority("nodes")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	issue := func(a *pki.Authority) pki.Pair {
		pair, err := a.Issue(pki.Identity{CommonName: "virtual-node", Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	own, other := authority(), authority()
	server := issue(own)
	files := TLSFiles{Cert: write("server.pem", server.Cert), Key: write("server.key", server.Key), ClientCA: write("ca.pem", own.Cert)}
	if _, err := ListenTLS("127.0.0.1:0", TLSFiles{Cert: files.Cert, Key: files.Key, ClientCA: files.Key}); err == nil {
		t.Error("a file without a certificate is taken for an authority")
	}
	listener, err := ListenTLS("127.0.0.1:0", files)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- New(newFinder(), "baseline", "login1", slog.New(slog.DiscardHandler)).Serve(ctx, listener)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(own.Cert)
	get := func(scheme string, certificates ...tls.Certificate) (int, error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates}, DisableKeepAlives: true}
		response, err := (&http.Client{Transport: transport}).Post(scheme+"://"+listener.Addr().String()+"/updateCache", "", nil)
		if err != nil {
			return 0, err
		}
		response.Body.Close()
		return response.StatusCode, nil
	}
	pair := func(p pki.Pair) tls.Certificate {
		certificate, err := tls.X509KeyPair(p.Cert, p.Key)
		if err != nil {
			t.Fatal(err)
		}
		return certificate
	}
	if code, err := get("https", pair(issue(own))); code != http.StatusOK {
		t.Errorf("with a certificate: %d %v", code, err)
	}
	if code, err := get("https"); err == nil {
		t.Errorf("without a certificate: %d", code)
	}
	if code, err := get("https", pair(issue(other))); err == nil {
		t.Errorf("with a certificate of another authority: %d", code)
	}
	if code, _ := get("http"); code == http.StatusOK {
		t.Error("a client without TLS is served")
	}
}
