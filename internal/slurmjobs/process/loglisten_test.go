package process

import (
	"crypto/x509"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/pki"
)

func TestLogAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.5": "10.0.0.5:0", "10.0.0.5:10350": "10.0.0.5:10350", "fd00::5": "[fd00::5]:0", "[fd00::5]:1": "[fd00::5]:1",
		"": "", "login1": "", "0.0.0.0": "", "[::]:1": "", "10.0.0.5:x": "", "fe80::1%eth0": "",
	} {
		got, err := LogListen{Address: text}.address()
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "give an IP address of this host") {
				t.Errorf("%q: got %v, %v", text, got, err)
			}
		} else if err != nil || got.String() != want {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
}

func TestLogClient(t *testing.T) {
	listen := LogListen{Address: "10.0.0.5", Client: KubeadmClient}
	if err := listen.Check(); err != nil {
		t.Error(err)
	}
	listen.Client = ""
	if err := listen.Check(); err == nil || !strings.Contains(err.Error(), "--logs-client: give the common name") {
		t.Errorf("got %v", err)
	}
}

// The server has the certificate of a file, or its own one for its address.
func TestLogCertificate(t *testing.T) {
	address := netip.MustParseAddr("10.0.0.5")
	own, err := LogListen{}.certificate(address)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil || parsed.VerifyHostname("10.0.0.5") != nil {
		t.Errorf("got %+v, %v", parsed, err)
	}
	authority, err := pki.NewAuthority("site")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(pki.Identity{CommonName: "login1"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "logs.pem")
	if err := os.WriteFile(path, slices.Concat(pair.Cert, pair.Key), 0o600); err != nil {
		t.Fatal(err)
	}
	given, err := LogListen{Certificate: path}.certificate(address)
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err := x509.ParseCertificate(given.Certificate[0]); err != nil || parsed.Subject.CommonName != "login1" {
		t.Errorf("got %+v, %v", parsed, err)
	}
	if err := os.WriteFile(path, pair.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (LogListen{Certificate: path}).certificate(address); err == nil || !strings.Contains(err.Error(), "give a file with a certificate and its key in PEM") {
		t.Error(err)
	}
}
