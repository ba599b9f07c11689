package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"testing"
)

func TestCertificateIsTrustedOnlyForItsNames(t *testing.T) {
	authority, err := NewAuthority("test-ca")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(Identity{
		CommonName: "server", Groups: []string{"g1"},
		Names: []string{"kubernetes.default"}, Addresses: []netip.Addr{netip.MustParseAddr("10.1.2.3")},
	})
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(loaded.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.Cert)
	for name, trusted := range map[string]bool{"kubernetes.default": true, "10.1.2.3": true, "10.1.2.4": false, "other": false} {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name})
		if trusted != (err == nil) {
			t.Errorf("verify for %s: %v, want trusted=%v", name, err, trusted)
		}
	}
	if got := leaf.Subject.Organization; len(got) != 1 || got[0] != "g1" {
		t.Errorf("groups are %v", got)
	}
}

func TestAuthoritiesDoNotTrustEachOther(t *testing.T) {
	first, err := NewAuthority("one")
	if err != nil {
		t.Fatal(err)
	}
	second, err := NewAuthority("two")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := first.Issue(Identity{CommonName: "client"})
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(loaded.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(second.Cert)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots}); err == nil {
		t.Error("a certificate of another cluster is trusted")
	}
}

func TestKubeconfigWithKeyFileRoundTrip(t *testing.T) {
	content := KubeconfigWithKeyFile("berth", "https://127.0.0.1:4711", []byte("authority"), []byte("cert"), "/proc/1/fd/9")
	client, err := ReadKubeconfig(content)
	if err != nil {
		t.Fatal(err)
	}
	if client.Server != "https://127.0.0.1:4711" || string(client.Authority) != "authority" || string(client.Cert) != "cert" || client.KeyFile != "/proc/1/fd/9" {
		t.Errorf("%+v", client)
	}
	for _, other := range []string{"", "a: [", "clusters: []"} {
		if _, err := ReadKubeconfig([]byte(other)); err == nil {
			t.Errorf("%q is read", other)
		}
	}
}
