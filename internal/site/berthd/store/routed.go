package store

import (
	"fmt"
	"net/netip"

	"berth.dev/berth/internal/site/siteconf"
)

// chooseRouted takes the lowest free address of each node's own subnet. It never
// takes the first and the last address of the subnet, nor gateway, the address
// that all nodes have for their own pods.
func chooseRouted(subnets map[string]netip.Prefix, gateway netip.Addr, taken map[netip.Addr]bool, via map[string]netip.Addr, nodes []string) ([]siteconf.Pod, error) {
	var chosen []siteconf.Pod
	for _, node := range nodes {
		end, known := via[node]
		if !known {
			return nil, errUnregistered(node)
		}
		subnet, known := subnets[node]
		if !known {
			return nil, errNoSubnet(node)
		}
		address := subnet.Addr().Next()
		for taken[address] || address == gateway {
			address = address.Next()
		}
		if !subnet.Contains(address.Next()) {
			return nil, fmt.Errorf("all addresses of %s on node %s are taken: wait for jobs there to end, or give 'routed' larger subnets", subnet, node)
		}
		chosen = append(chosen, siteconf.Pod{Node: node, Address: address, Via: end})
	}
	return chosen, nil
}

func errNoSubnet(node string) error {
	return fmt.Errorf("node %s has no subnet of pods: add it to 'routed' in the configuration of all nodes", node)
}

// HasSubnet returns an error if a node that has pods has no subnet.
func HasSubnet(config siteconf.Config, node string) error {
	if _, found := config.Subnets()[node]; !found {
		return errNoSubnet(node)
	}
	return nil
}

func errUnregistered(node string) error {
	return fmt.Errorf("node %s is not registered: start berthd there", node)
}
