package containerdconf

import (
	"encoding/json"
	"net/netip"
	"path/filepath"

	"berth.dev/berth/internal/base/cluster"
)

// CNI returns the configuration of the pod network on one node: a bridge with
// the node's part of each pod range, and host ports through nftables.
//
// The ports of the bridge are isolated, so that pods of a node reach each other only
// through the node's routing, where Services and network policies apply. They would apply
// to bridged packets only with the module br_netfilter, and to bridged packets for
// link-local addresses never.
//
// Nothing is masqueraded here: the egress device accepts any source address, and
// kube-proxy masquerades packets if their replies must come back through the node.
func CNI(plan cluster.Plan) []byte {
	var ranges [][]cniRange
	var routes []cniRoute
	for _, family := range plan.Addresses.Families() {
		ranges = append(ranges, []cniRange{{Subnet: family.NodePods.String()}})
		for _, to := range throughGateway(family.NodePods) {
			routes = append(routes, cniRoute{Destination: to.String()})
		}
	}
	list := cniList{
		Version: "1.0.0",
		Name:    "berth",
		Plugins: []any{
			cniBridge{
				Type:      "bridge",
				Bridge:    cluster.PodBridge,
				IsGateway: true,
				Isolated:  true,
				MTU:       plan.PodMTU,
				IPAM: cniHostLocal{
					Type:    "host-local",
					Ranges:  ranges,
					Routes:  routes,
					DataDir: filepath.Join(plan.Paths.Run, "cni", "addresses"),
				},
			},
			cniPortmap{
				Type:         "portmap",
				Backend:      "nftables",
				SNAT:         true,
				Capabilities: map[string]bool{"portMappings": true},
			},
		},
	}
	text, _ := json.MarshalIndent(list, "", "  ") // strings, numbers and bools always encode
	return append(text, '\n')
}

// throughGateway returns routes that lead a pod everywhere through the first address
// of its subnet. The rest of the subnet has a route for each half, because the halves
// come before the route to the whole that the pod's interface has. The half with the
// gateway is the last: until then the kernel finds the gateway on the link.
func throughGateway(subnet netip.Prefix) []netip.Prefix {
	first := subnet.Masked().Addr()
	half := subnet.Bits() + 1
	upper := first.AsSlice()
	upper[subnet.Bits()/8] |= 0x80 >> (subnet.Bits() % 8)
	second, _ := netip.AddrFromSlice(upper) // as long as it was
	return []netip.Prefix{
		netip.PrefixFrom(first, 0).Masked(), netip.PrefixFrom(second, half), netip.PrefixFrom(first, half),
	}
}

type cniList struct {
	Version string `json:"cniVersion"`
	Name    string `json:"name"`
	Plugins []any  `json:"plugins"`
}

type cniBridge struct {
	Type      string       `json:"type"`
	Bridge    string       `json:"bridge"`
	IsGateway bool         `json:"isGateway"`
	Isolated  bool         `json:"portIsolation"`
	MTU       int          `json:"mtu"`
	IPAM      cniHostLocal `json:"ipam"`
}

type cniHostLocal struct {
	Type    string       `json:"type"`
	Ranges  [][]cniRange `json:"ranges"`
	Routes  []cniRoute   `json:"routes"`
	DataDir string       `json:"dataDir"`
}

type cniRange struct {
	Subnet string `json:"subnet"`
}

type cniRoute struct {
	Destination string `json:"dst"`
}

type cniPortmap struct {
	Type         string          `json:"type"`
	Backend      string          `json:"backend"`
	SNAT         bool            `json:"snat"`
	Capabilities map[string]bool `json:"capabilities"`
}
