package siteconf

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const good = `
cluster: alps
pods: 10.128.0.0/12
hosts: 192.168.0.0/16
etcd:
  endpoints: ["https://ctl:2379"]
  ca: /etc/berth/ca.crt
  cert: /etc/berth/node.crt
  key: /etc/berth/node.key
policy:
  egress:
  - addresses: [192.168.0.0/16]
    ports: [tcp/6817-6819, udp/53]
  users:
    alice:
      egress:
      - addresses: [0.0.0.0/0]
`

func load(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "site.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

func TestConfigurationIsRead(t *testing.T) {
	c, err := load(t, good)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Policy.Egress[0].Ports[0].String(); got != "tcp/6817-6819" {
		t.Errorf("port %s", got)
	}
	if got := c.Gateway().String(); got != "10.128.0.1" {
		t.Errorf("gateway %s", got)
	}
	if c.Tunnel.Port != TunnelPort || len(c.Policy.Users["alice"].Egress) != 1 {
		t.Errorf("configuration %+v", c)
	}
}

func TestRangesOfAddressesAreRead(t *testing.T) {
	for text, want := range map[string]string{
		"198.51.100.16/29": "198.51.100.16-198.51.100.23 8", "198.51.100.17/29": "198.51.100.16-198.51.100.23 8",
		"198.51.100.9-198.51.100.11": "198.51.100.9-198.51.100.11 3", "198.51.100.9": "198.51.100.9-198.51.100.9 1",
	} {
		var r AddressRange
		if err := r.UnmarshalText([]byte(text)); err != nil || fmt.Sprintf("%s %d", r, r.size()) != want {
			t.Errorf("%s: %s %d, %v, want %s", text, r, r.size(), err, want)
		}
	}
}

// A range may end at the last address of IPv4.
func TestRangeAddressesAreCounted(t *testing.T) {
	for text, want := range map[string]string{
		"255.255.255.254/31": "[255.255.255.254 255.255.255.255]", "10.0.0.255-10.0.1.0": "[10.0.0.255 10.0.1.0]", "0.0.0.0": "[0.0.0.0]",
	} {
		var r AddressRange
		if err := r.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		// Limit the loop, because an endless range would fill the memory.
		var got []netip.Addr
		for a := range r.All() {
			if got = append(got, a); len(got) > 2 || !r.Contains(a) {
				break
			}
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", text, got, want)
		}
		if r.Contains(netip.MustParseAddr("10.0.1.1")) || r.Contains(netip.Addr{}) || r.Contains(netip.MustParseAddr("::1")) {
			t.Errorf("%s contains what it does not", text)
		}
	}
	if (AddressRange{}).Contains(netip.MustParseAddr("10.0.1.1")) {
		t.Error("no range has an address")
	}
}

// Nodes of a list have consecutive subnets, up to the last of the range.
func TestNodesHaveSubnets(t *testing.T) {
	c, err := load(t, good+"routed: {\"n[1-3],x\": 10.143.252.0/24, login: 10.128.0.0/26}\n")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"n1": "10.143.252.0/24", "n2": "10.143.253.0/24", "n3": "10.143.254.0/24", "x": "10.143.255.0/24", "login": "10.128.0.0/26"}
	got := c.Subnets()
	for node, subnet := range want {
		if got[node].String() != subnet {
			t.Errorf("%s has %v, want %s", node, got[node], subnet)
		}
	}
	if len(got) != len(want) || !c.ByRoutes() {
		t.Errorf("subnets %v", got)
	}
}

func TestMistakesAreReported(t *testing.T) {
	for change, reason := range map[string]string{
		"pods: 10.128.0.0/12=>pods: 10.128.0.0/30":                                                                                      "pods",
		"pods: 10.128.0.0/12=>pods: 192.168.4.0/24":                                                                                     "overlaps",
		"pods: 10.128.0.0/12=>pods: fd00::/64":                                                                                          "IPv4",
		"hosts: 192.168.0.0/16=>hosts: fd00::/64":                                                                                       "hosts",
		"cluster: alps=>cluster: Alps!":                                                                                                 "cluster",
		"cluster: alps=>clutser: alps":                                                                                                  "clutser",
		"  key: /etc/berth/node.key=>  key: node.key":                                                                                   "absolute",
		`endpoints: ["https://ctl:2379"]=>endpoints: []`:                                                                                "endpoints",
		"cluster: alps=>cluster: alps\ndns: {forward: [ns1]}":                                                                           "dns.forward",
		"cluster: alps=>cluster: alps\ndns: {search: [example.org.]}":                                                                   "dns.search",
		"cluster: alps=>cluster: alps\ndns: {program: berth-dns}":                                                                       "dns.program",
		"cluster: alps=>cluster: alps\nlease: 1s":                                                                                       "lease",
		"cluster: alps=>cluster: alps\nmetrics: 9418":                                                                                   "metrics",
		"cluster: alps=>cluster: alps\naudit: audit.log":                                                                                "audit",
		"cluster: alps=>cluster: alps\ngateways: {on: [gw1]}":                                                                           "networks",
		"cluster: alps=>cluster: alps\ngateways: {on: [g], networks: [{nat: true}]}":                                                    "addresses are missing",
		"cluster: alps=>cluster: alps\ngateways: {on: [g], networks: [{addresses: [192.168.4.0/24]}]}":                                  "inside of pods or hosts",
		"cluster: alps=>cluster: alps\ngateways: {on: [g], networks: [{addresses: [\"fd00::/8\"]}]}":                                    "not IPv4",
		"cluster: alps=>cluster: alps\ngateways: {on: [g], networks: [{addresses: [1.0.0.0/8]}, {addresses: [1.2.3.4/8]}]}":             "twice",
		"cluster: alps=>cluster: alps\ngateways: {on: [g], interfaces: [eth1/0], networks: [{addresses: [0.0.0.0/0]}]}":                 "gateways.interfaces",
		"cluster: alps=>cluster: alps\ngroups: {\"12\": [alice]}":                                                                       "a letter first",
		"cluster: alps=>cluster: alps\ngroups: {a: [bob], b: [alice, bob]}":                                                             "bob is in a already",
		"policy:=>cni: {list: net.conflist}\npolicy:":                                                                                   "cni.list",
		"policy:=>sessions: {image: images/login}\npolicy:":                                                                             "sessions.image",
		"policy:=>sessions: {image: /}\npolicy:":                                                                                        "sessions.image",
		"policy:=>sessions: {image: /images/../..}\npolicy:":                                                                            "sessions.image",
		"policy:=>sessions: {image: \"/images/a b\"}\npolicy:":                                                                          "sessions.image",
		"policy:=>sessions: {mounts: [/home]}\npolicy:":                                                                                 "no image",
		"policy:=>sessions: {image: /i, mounts: [\"/home:/root\"]}\npolicy:":                                                            "sessions.mounts",
		"policy:=>sessions: {image: /i, mounts: [/a,/b,/c,/d,/e,/f,/g,/h,/i,/j,/k,/l,/m,/n,/o,/p,/q]}\npolicy:":                         "up to 16",
		"policy:=>policy:\n  flows: 255":                                                                                                "policy.flows: 255",
		"policy:=>policy:\n  flows: -1":                                                                                                 "or leave it out",
		"policy:=>cni: {list: /a.conflist, plugins: [bin]}\npolicy:":                                                                    "cni.plugins",
		"policy:=>cni: {list: /a.conflist, state: cni}\npolicy:":                                                                        "cni.state",
		"policy:=>cni: {list: /a.conflist}\npolicy:":                                                                                    "the plugins decide who reaches whom",
		"policy:=>cni: {list: /a.conflist}\nroutes-on: [ctl]\npolicy:":                                                                  "routes-on",
		"policy:=>cni: {list: /a}\ngateways: {on: [g], networks: [{addresses: [0.0.0.0/0]}]}\npolicy:":                                  "connect to the outside",
		"policy:=>gateways: {on: [g], as: {h: 1.2.3.4}, networks: [{addresses: [0.0.0.0/0]}]}\npolicy:":                                 "not one of the gateways",
		"policy:=>gateways: {on: [g], as: {g: 1.2.3.0/23}, networks: [{addresses: [0.0.0.0/0]}]}\npolicy:":                              "up to 256",
		"policy:=>gateways: {on: [g], as: {g: 1.2.3.9-1.2.3.4}, networks: [{addresses: [0.0.0.0/0]}]}\npolicy:":                         "smaller one first",
		"policy:=>gateways: {on: [g], as: {g: 10.127.255.255-10.128.0.1}, networks: [{addresses: [0.0.0.0/0]}]}\npolicy:":               "has pods in it",
		"policy:=>gateways: {on: [g, h], as: {g: 1.2.3.0/24, h: 1.2.3.255}, networks: [{addresses: [0.0.0.0/0]}]}\npolicy:":             "1.2.3.255 is one of g",
		"policy:=>gateways: {on: [g], as: {g: \"fd00::1\"}, networks: [{addresses: [0.0.0.0/0]}]}\npolicy:":                             "IPv4",
		"policy:=>gateways: {on: [g], as: {g: }, networks: [{addresses: [0.0.0.0/0]}]}\npolicy:":                                        "gateways.as.g: addresses are missing",
		"policy:=>gateways: {on: [g, h], as: {g: 255.255.255.0/24, h: 255.255.255.255}, networks: [{addresses: [0.0.0.0/0]}]}\npolicy:": "255.255.255.255 is one of g",
		"policy:=>dns: {forward: [1.2.3.4]}\ngateways: {on: [g], as: {g: 1.2.3.0/24}, networks: [{addresses: [0.0.0.0/0]}]}\npolicy:":   "1.2.3.4 is one of dns.forward",
		"etcd:\n  endpoints: [\"https://ctl:2379\"]=>gateways: {on: [g], as: {g: 192.168.0.9}, networks: [{addresses: [0.0.0.0/0]}]}\netcd:\n  endpoints: [\"https://192.168.0.9:2379\"]": "192.168.0.9 is one of etcd.endpoints",
		"policy:=>routed: {n1: 10.128.0.0/31}\npolicy:":                              "up to /30",
		"policy:=>routed: {n1: 10.128.0.5/24}\npolicy:":                              "is not a subnet of pods",
		"policy:=>routed: {n1: 10.127.0.0/24}\npolicy:":                              "is not a subnet of pods",
		"policy:=>routed: {n1: 10.0.0.0/8}\npolicy:":                                 "is not a subnet of pods",
		"policy:=>routed: {n1: \"fd00::/64\"}\npolicy:":                              "is not a subnet of pods",
		"policy:=>routed: {n1: }\npolicy:":                                           "is not a subnet of pods",
		"policy:=>routed: {\"n[1-\": 10.128.0.0/24}\npolicy:":                        "expand host list",
		"policy:=>routed: {\"n[1-4097]\": 10.128.0.0/24}\npolicy:":                   "more than pods",
		"policy:=>routed: {\"n[1-2]\": 10.143.255.0/24}\npolicy:":                    "more than pods",
		"policy:=>routed: {\"n[1-2],n1\": 10.128.0.0/24}\npolicy:":                   "n1 has a subnet already",
		"policy:=>routed: {\"n[1-2]\": 10.128.0.0/24, n3: 10.128.1.128/25}\npolicy:": "10.128.1.0/24 of n2 and 10.128.1.128/25 of n3 overlap",
		"policy:=>routed: {n1: 10.128.0.0/24}\ncni: {list: /a.conflist}\npolicy:":    "leave out 'routed', or 'cni'",
		"policy:=>routed: {n1: 10.128.0.0/24}\nlogin-on: [login]\npolicy:":           "login of login-on has no subnet",
		"tcp/6817-6819=>tcp/6819-6817":                                               "smaller one first",
		"udp/53=>icmp/1":                                                             "tcp/22",
		"udp/53=>udp/70000":                                                          "65535",
		"0.0.0.0/0=>10.130.0.0/16":                                                   "has pods in it",
		"- addresses: [0.0.0.0/0]=>- ports: [tcp/1]":                                 "addresses are missing",
	} {
		from, to, _ := strings.Cut(change, "=>")
		if !strings.Contains(good, from) {
			t.Fatalf("the test changes %q, which is not there", from)
		}
		if _, err := load(t, strings.Replace(good, from, to, 1)); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, want %s", to, err, reason)
		}
	}
}
