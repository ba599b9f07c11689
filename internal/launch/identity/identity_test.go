package identity

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"testing"

	"berth.dev/berth/internal/base/cluster"
)

// Several nodes share one identity for sending each other layers. A single node
// has none.
func TestPeerIdentity(t *testing.T) {
	plans := make([]cluster.Plan, 2)
	for i := range plans {
		plans[i] = cluster.Plan{Index: i, Controls: 1, Paths: cluster.Paths{Run: "/run"}}
		address := netip.AddrFrom4([4]byte{100, 64, 0, byte(i + 1)})
		plans[i].Addresses.Node, plans[i].Addresses.APIServer, plans[i].Addresses.APIService = address, address, address
	}
	key := plans[0].Paths.PKI(cluster.Peers + ".key")
	for n := range plans {
		made, err := Make(plans[:n+1], "test", nil)
		if err != nil {
			t.Fatal(err)
		}
		made.Key.Close()
		first, shared := made.Nodes[0][key]
		if shared != (n > 0) {
			t.Errorf("%d nodes: shared identity %v", n+1, shared)
		}
		for _, files := range made.Nodes {
			if file := files[key]; !bytes.Equal(file.Content, first.Content) || shared && file.Mode != 0o600 {
				t.Errorf("%d nodes: not the same key for all, readable by the owner alone: %o", n+1, file.Mode)
			}
			if _, ok := files[plans[0].Paths.PKI(cluster.PeersCA+".key")]; ok {
				t.Error("a node has the key of the authority")
			}
		}
	}
}

// A later control plane with the same trust accepts the certificates of nodes of the earlier one.
func TestKeysOfAnEarlierClusterRemainValid(t *testing.T) {
	plans := []cluster.Plan{{Node: cluster.Node{Name: "n1"}, Paths: cluster.Paths{Run: "/run/berth"}, Controls: 1}}
	address := netip.MustParseAddr("100.64.0.1")
	plans[0].Addresses.Node, plans[0].Addresses.APIServer, plans[0].Addresses.APIService = address, address, address
	first, err := Make(plans, "test", nil)
	if err != nil {
		t.Fatal(err)
	}
	next, err := Make(plans, "test", &first.Trust)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Key.Close()
	defer next.Key.Close()
	for _, name := range []string{cluster.CA + ".crt", cluster.CA + ".key", cluster.ServiceTokens + ".key"} {
		path := plans[0].Paths.PKI(name)
		if before := first.Nodes[0][path].Content; len(before) == 0 || !bytes.Equal(before, next.Nodes[0][path].Content) {
			t.Errorf("%s has changed", path)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(next.Trust.Authority.Cert)
	block, _ := pem.Decode(first.Nodes[0][plans[0].Paths.PKI(cluster.KubeletServer+".crt")].Content)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: "n1"}); err != nil {
		t.Error(err)
	}
	if _, err := Make(plans, "test", &Trust{}); err == nil {
		t.Error("a cluster without an authority is made")
	}
}
