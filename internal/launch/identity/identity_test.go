package identity

import (
	"bytes"
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
		made, err := Make(plans[:n+1], "test")
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
