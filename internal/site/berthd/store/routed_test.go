package store

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"berth.dev/berth/internal/site/siteconf"
)

// A node's pods have addresses of that node's subnet, and none if those are taken.
func TestRoutedPodsHaveAddressesOfTheirNode(t *testing.T) {
	address := netip.MustParseAddr
	config := siteconf.Default()
	config.Pods = netip.MustParsePrefix("10.128.0.0/16")
	config.Routed = map[string]netip.Prefix{"n[1-2]": netip.MustParsePrefix("10.128.0.0/29")}
	via := map[string]netip.Addr{"n1": address("192.168.1.1"), "n2": address("192.168.1.2"), "n3": address("192.168.1.3")}
	taken := map[netip.Addr]bool{}
	// 10.128.0.1 is the address of all nodes towards their pods.
	for _, want := range []string{"10.128.0.2 10.128.0.9", "10.128.0.3 10.128.0.10", "10.128.0.4 10.128.0.11", "10.128.0.5 10.128.0.12", "10.128.0.6 10.128.0.13"} {
		pods, err := chooseRouted(config.Subnets(), config.Gateway(), taken, via, []string{"n1", "n2"})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%s %s", pods[0].Address, pods[1].Address); got != want || pods[0].Via != via["n1"] || pods[1].Node != "n2" {
			t.Errorf("pods %v, want %s", pods, want)
		}
		for _, pod := range pods {
			taken[pod.Address] = true
		}
	}
	if pods, err := chooseRouted(config.Subnets(), config.Gateway(), taken, via, []string{"n2"}); err != nil || pods[0].Address != address("10.128.0.14") {
		t.Errorf("n2, which has one left: %v %v", pods, err)
	}
	for node, want := range map[string]string{
		"n1": "all addresses of 10.128.0.0/29 on node n1 are taken", "n3": "no subnet of pods: add it to 'routed'", "n4": "node n4 is not registered",
	} {
		if _, err := chooseRouted(config.Subnets(), config.Gateway(), taken, via, []string{node}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", node, err, want)
		}
	}
}
