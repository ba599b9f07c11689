package control

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/pki"
	"berth.dev/berth/internal/kube/control/controltest"
)

// Members of etcd answer only each other. Clients without a certificate and users of the
// cluster get no answer.
func TestOnlyMembersReachEtcd(t *testing.T) {
	address := netip.MustParseAddr("127.0.0.1")
	issue := func(name string) (*pki.Authority, pki.Pair) {
		authority, err := pki.NewAuthority(name)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := authority.Issue(pki.Identity{CommonName: "node", Groups: []string{"system:masters"}, Addresses: []netip.Addr{address}})
		if err != nil {
			t.Fatal(err)
		}
		return authority, pair
	}
	authority, member := issue("etcd-ca")
	_, user := issue("kubernetes-ca")
	_, sameName := issue("etcd-ca")

	plan := cluster.Plan{Paths: cluster.Paths{Run: t.TempDir()}}
	controltest.WriteFile(t, plan.Paths.PKI(cluster.EtcdCA+".crt"), authority.Cert)
	controltest.WriteFile(t, plan.Paths.PKI(cluster.EtcdPeer+".crt"), member.Cert)
	controltest.WriteFile(t, plan.Paths.PKI(cluster.EtcdPeer+".key"), member.Key)
	listener, err := listenForPeers(plan, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // until it is closed
	t.Cleanup(func() { server.Close() })

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.Cert)
	for _, test := range []struct {
		name     string
		pair     *pki.Pair
		answered bool
	}{
		{"a member", &member, true},
		{"no certificate", nil, false},
		{"a user of the cluster", &user, false},
		{"another authority of that name", &sameName, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := &tls.Config{RootCAs: roots}
			if test.pair != nil {
				cert, err := tls.X509KeyPair(test.pair.Cert, test.pair.Key)
				if err != nil {
					t.Fatal(err)
				}
				// Sent whatever authorities the server names.
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
			}
			transport := &http.Transport{TLSClientConfig: config}
			defer transport.CloseIdleConnections()
			answer, err := (&http.Client{Transport: transport}).Get("https://" + listener.Addr().String() + "/members")
			if err == nil {
				answer.Body.Close()
			}
			if answered := err == nil; answered != test.answered {
				t.Errorf("answered: %v (error %v), want %v", answered, err, test.answered)
			}
		})
	}
}
