package siteconf

import (
	"net/netip"
	"strings"
	"testing"
)

func TestSecondAddressFollowsFromFirst(t *testing.T) {
	c, err := load(t, good+"ipv6: {pods: \"fd42:6265:7274:1::/96\", hosts: \"2001:db8:1::/64\"}\n")
	if err != nil {
		t.Fatal(err)
	}
	pod := netip.MustParseAddr("10.128.1.2")
	if got := c.IPv6.Second(pod).String(); got != "fd42:6265:7274:1::a80:102" {
		t.Errorf("%s has %s", pod, got)
	}
	if got := c.IPv6.SecondOf(netip.MustParsePrefix("10.128.1.0/24")).String(); got != "fd42:6265:7274:1::a80:100/120" {
		t.Errorf("a subnet has %s", got)
	}
	if got := NextHop(netip.MustParseAddr("192.168.1.11")).String(); got != "fe80::6265:7274:c0a8:10b" {
		t.Errorf("a host is led to by %s", got)
	}
	none := IPv6{}
	if none.Dual() || none.Second(pod).IsValid() || c.IPv6.Second(netip.Addr{}).IsValid() {
		t.Error("there is a second address without a range, or without a first one")
	}
}

func TestOutsideIPv6AddressesAreMapped(t *testing.T) {
	const rules = `
policy:
  egress:
  - addresses: [192.168.0.0/16, "2001:db8:1::/64", "::/0"]
gateways: {on: [g], networks: [{addresses: [0.0.0.0/0, "::/0"], nat: true}, {addresses: ["2001:db8:2::/48"]}]}
`
	before, _, _ := strings.Cut(good, "policy:")
	if _, err := load(t, before+"ipv6: {pods: \"fd42::/96\"}"+rules); err != nil {
		t.Error(err)
	}
	_, err := load(t, before+rules)
	for _, wrong := range []string{"policy.egress[0]: 2001:db8:1::/64 is not IPv4", "gateways.networks[1]: 2001:db8:2::/48 is not IPv4"} {
		if err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("without a range of IPv6 addresses: %v, want %s", err, wrong)
		}
	}
}

func TestIPv6MistakesAreReported(t *testing.T) {
	for text, reason := range map[string]string{
		`ipv6: {pods: "fd42::/64"}`:                             "give a /96",
		`ipv6: {pods: 10.1.0.0/16}`:                             "give a /96",
		`ipv6: {pods: "fe80::/96"}`:                             "give a /96",
		`ipv6: {pods: "ff02::/96"}`:                             "give a /96",
		`ipv6: {pods: "::/96"}`:                                 "give a /96",
		`ipv6: {hosts: "fd43::/64"}`:                            "give 'ipv6.pods' as well",
		`ipv6: {pods: "fd42::/96", hosts: 10.1.0.0/16}`:         "the IPv6 network of the hosts",
		`ipv6: {pods: "fd42::/96", hosts: "fd42::/64"}`:         "overlaps",
		`ipv6: {pods: "fd42::/96", host: "fd43::/64"}`:          "host",
		"ipv6: {pods: \"fd42::/96\"}\ncni: {list: /a.conflist}": "leave out 'ipv6', or 'cni'",
		"ipv6: {pods: \"fd42::/96\"}\ngateways: {on: [g], networks: [{addresses: [\"fd42::9:0/112\"]}]}":                   "inside of pods or hosts",
		"ipv6: {pods: \"fd42::/96\", hosts: \"fd43::/64\"}\ngateways: {on: [g], networks: [{addresses: [\"fd43::/80\"]}]}": "inside of pods or hosts",
		"ipv6: {pods: \"fd42::/96\"}\ngateways: {on: [g], as: {g: \"fd44::1\"}, networks: [{addresses: [\"::/0\"]}]}":      "IPv4",
	} {
		if _, err := load(t, good+text+"\n"); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, want %s", text, err, reason)
		}
	}
	rule := strings.Replace(good, "0.0.0.0/0", `"fd42::9:0/112"`, 1) + "ipv6: {pods: \"fd42::/96\"}\n"
	if _, err := load(t, rule); err == nil || !strings.Contains(err.Error(), "has pods in it") {
		t.Errorf("a rule for pods: %v", err)
	}
}
