package runtimeconf

import (
	"encoding/json"
	"path/filepath"

	"berth.dev/berth/internal/cluster"
)

// CNIFile is the name of the file below Paths.CNIConfig().
const CNIFile = "10-berth.conflist"

// CNI returns the configuration of the pod network on one node: a bridge with
// the node's part of the pod range, and host ports through nftables.
//
// Nothing is masqueraded here: the way out accepts any source address, and
// kube-proxy masquerades what has to come back through the node.
func CNI(plan cluster.Plan) []byte {
	defaultRoute := "0.0.0.0/0"
	if plan.Addresses.NodePods.Addr().Is6() {
		defaultRoute = "::/0"
	}
	list := cniList{
		Version: "1.0.0",
		Name:    "berth",
		Plugins: []any{
			cniBridge{
				Type:      "bridge",
				Bridge:    cluster.PodBridge,
				IsGateway: true,
				// A pod that reaches itself through its Service.
				Hairpin: true,
				MTU:     plan.PodMTU,
				IPAM: cniHostLocal{
					Type:    "host-local",
					Ranges:  [][]cniRange{{{Subnet: plan.Addresses.NodePods.String()}}},
					Routes:  []cniRoute{{Destination: defaultRoute}},
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

type cniList struct {
	Version string `json:"cniVersion"`
	Name    string `json:"name"`
	Plugins []any  `json:"plugins"`
}

type cniBridge struct {
	Type      string       `json:"type"`
	Bridge    string       `json:"bridge"`
	IsGateway bool         `json:"isGateway"`
	Hairpin   bool         `json:"hairpinMode"`
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
