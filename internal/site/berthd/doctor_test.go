package berthd

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

func TestSessionImageHasMountpoints(t *testing.T) {
	image, home := t.TempDir(), t.TempDir()
	sessions := siteconf.Sessions{Image: image, Mounts: []string{home}}
	for _, path := range []string{"proc", "sys", "dev", "tmp", strings.TrimPrefix(home, "/")} {
		if err := hasPlaces(sessions); err == nil || !strings.Contains(err.Error(), "mkdir -p "+image+"/"+path) {
			t.Errorf("without %s: %v", path, err)
		}
		if err := os.MkdirAll(filepath.Join(image, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := hasPlaces(sessions); err != nil {
		t.Error(err)
	}
	if err := os.Remove(home); err != nil {
		t.Fatal(err)
	}
	if err := hasPlaces(sessions); err == nil || !strings.Contains(err.Error(), home) || !strings.Contains(err.Error(), "sessions.mounts") {
		t.Errorf("of a folder that the host has not: %v", err)
	}
	sessions.Image += "/none"
	if err := hasPlaces(sessions); err == nil || !strings.Contains(err.Error(), "sessions.image") {
		t.Errorf("without an image: %v", err)
	}
}

// berthd also removes rules with nft if plugins connect pods, and does not start
// without it.
func TestCNINeedsNft(t *testing.T) {
	for _, list := range []string{"", "/site.conflist"} {
		config := siteconf.Default()
		config.CNI.List = list
		if checks := nodeChecks(config, "n1"); !slices.ContainsFunc(checks, func(c check) bool { return strings.Contains(c.name, "nft") }) {
			t.Errorf("with the list %q nobody asks for nft", list)
		}
	}
}

// A user who can open the tunnel port keeps the kernel from starting tunnels. A user
// who can send from a port of tunnels can inject packets into all of them.
func TestUserPortsAreReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "first")
	for _, c := range []struct {
		first, says string
		port        uint16
	}{
		{"1024\n", "", siteconf.TunnelPort},
		{"1024\n", "open UDP port 4789", 4789},
		{"1023\n", "ip_unprivileged_port_start=1024", siteconf.TunnelPort},
		{"80\n", "write frames into every network", siteconf.TunnelPort},
		{"0\n", "ip_unprivileged_port_start=1024", 4789},
		{"none", "read " + path, siteconf.TunnelPort},
	} {
		if err := os.WriteFile(path, []byte(c.first), 0o600); err != nil {
			t.Fatal(err)
		}
		err := portsOfRoot(path, c.port)
		if (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("port %d where users have those from %q: %v", c.port, c.first, err)
		}
	}
	if !slices.ContainsFunc(nodeChecks(siteconf.Default(), "n1"), func(c check) bool { return strings.Contains(c.name, "ports of tunnels") }) {
		t.Error("nobody looks at the ports of tunnels")
	}
}

// Hosts register their tunnel port, and the doctor lists the hosts whose port differs
// from its own.
func TestHostsWithOtherPortsAreReported(t *testing.T) {
	config := testConfig()
	s := newStore(t, config)
	said := func() error {
		t.Helper()
		ports, err := s.TunnelPorts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return samePort(ports, siteconf.TunnelPort)
	}
	if err := said(); err != nil {
		t.Errorf("all have the same: %v", err)
	}
	config.Tunnel.Port = 4789
	other := store.New(s.Client(), config)
	for i := range 8 {
		if _, err := other.Register(t.Context(), fmt.Sprintf("n%d", i+2), netip.AddrFrom4([4]byte{192, 168, 1, byte(i)})); err != nil {
			t.Fatal(err)
		}
	}
	config.Tunnel.Port = 300
	if _, err := store.New(s.Client(), config).Register(t.Context(), "n1", netip.MustParseAddr("192.168.0.2")); err != nil {
		t.Fatal(err)
	}
	if err := said(); err == nil || !strings.Contains(err.Error(), "it is 289 here and 300 on n1, 4789 on n2,n3,n4,n5,n6 and 3 more,") {
		t.Errorf("%v", err)
	}
	// If plugins connect pods, there are no tunnels.
	for list, asked := range map[string]bool{"": true, "/site.conflist": false} {
		config := siteconf.Default()
		config.CNI.List = list
		if slices.ContainsFunc(nodeChecks(config, "n1"), func(c check) bool { return strings.Contains(c.name, "one port for tunnels") }) != asked {
			t.Errorf("with the list %q ports are compared: %t", list, !asked)
		}
	}
}

// A host that tracks fewer connections than some pods may open loses its own.
func TestTooFewConnectionsAreReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "max")
	if err := leavesConnections(path, 8192); err != nil {
		t.Errorf("nothing is tracked: %v", err)
	}
	for most, says := range map[string]string{"262144\n": "", "0\n": "", "16384\n": "3 pods keep out the host's own: sysctl -w net.netfilter.nf_conntrack_max=65536", "many": "read " + path} {
		if err := os.WriteFile(path, []byte(most), 0o600); err != nil {
			t.Fatal(err)
		}
		err := leavesConnections(path, 8192)
		if (err != nil) != (says != "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("of %q: %v", most, err)
		}
	}
}

// A name server of the host on all addresses occupies the port of the pods' name
// server; one on a single address does not.
func TestNameServerOnAllAddressesIsReported(t *testing.T) {
	own, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := own.LocalAddr().(*net.UDPAddr).Port
	defer own.Close()
	if err := noWildcard(port); err != nil {
		t.Errorf("it listens only on 127.0.0.1: %v", err)
	}
	all, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	port = all.Addr().(*net.TCPAddr).Port
	if err := noWildcard(port); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("sport = :%d", port)) {
		t.Errorf("by TCP it listens on all: %v", err)
	}
	wide, err := net.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer wide.Close()
	if err := noWildcard(wide.LocalAddr().(*net.UDPAddr).Port); err == nil {
		t.Error("by UDP it listens on all")
	}
}

func TestIPv6IsRequestedForIPv6Pods(t *testing.T) {
	for _, pods := range []netip.Prefix{{}, netip.MustParsePrefix("fd42::/96")} {
		config := siteconf.Default()
		config.IPv6.Pods = pods
		asked := slices.ContainsFunc(nodeChecks(config, "n1"), func(c check) bool { return strings.Contains(c.name, "IPv6") })
		if asked != pods.IsValid() {
			t.Errorf("with the range %v IPv6 is asked for: %t", pods, asked)
		}
	}
}

func TestFilesAreInspected(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for text, wrong := range map[string]bool{
		"hosts: files dns\n":                                    false,
		"hosts: files resolve [!UNAVAIL=return] dns\n":          true,
		"passwd: files resolve\n# hosts: resolve\nhosts: dns\n": false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := plainResolver(path); (err != nil) != wrong {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := private(path); err == nil || !strings.Contains(err.Error(), "chmod 600 "+path) {
		t.Errorf("a key that all may read: %v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := private(path); err != nil {
		t.Error(err)
	}
}
