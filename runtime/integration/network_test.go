package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func withHostPort(host, container int32) podOption {
	return func(c *cri.PodSandboxConfig) {
		c.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, HostPort: host, ContainerPort: container}}
	}
}

// Pods get addresses on the bridge and are reached there and by host port.
func TestPodNetwork(t *testing.T) {
	n := startNode(t)
	n.helperImage()
	setUpForwarding(t)
	p := n.runPod("web", withNetwork, withHostPort(8080, 80))
	id := p.run("server", 0, "serve", ":80", "hello from the pod")
	other := n.runPod("client", withNetwork).run("sleeper", 0, "sleep")

	answer, err := n.runtime.PodSandboxStatus(testContext(t), &cri.PodSandboxStatusRequest{PodSandboxId: p.id})
	if err != nil {
		t.Fatal(err)
	}
	ip := answer.Status.Network.Ip
	if !strings.HasPrefix(ip, "10.200.3.") {
		t.Errorf("address of the pod is %q", ip)
	}
	if !eventually(5*time.Second, func() bool { return dial(ip+":80") == "hello from the pod" }) {
		t.Errorf("from the node: %q", dial(ip+":80"))
	}
	for name, target := range map[string]string{"another pod": ip + ":80", "the host port": "10.200.3.1:8080"} {
		if got, err := n.exec(other, "dial", target); err != nil || got != "hello from the pod" {
			t.Errorf("to %s: %q, %v", name, got, err)
		}
	}
	if got, err := n.exec(id, "dial", ip+":80"); err != nil || got != "hello from the pod" {
		t.Errorf("to itself: %q, %v", got, err)
	}
	p.remove()
	files, _ := filepath.Glob("/run/berth/cni/addresses/berth/10.*")
	if len(files) != 1 {
		t.Errorf("addresses still taken: %v, want the client's alone", files)
	}
}

// setUpForwarding does what the sandbox does for a node (internal/sandbox).
func setUpForwarding(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{
		"ipv4/ip_forward":                  "1",
		"ipv4/conf/all/send_redirects":     "0",
		"ipv4/conf/default/send_redirects": "0",
		"bridge/bridge-nf-call-iptables":   "0",
	} {
		err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644)
		if err != nil && !(errors.Is(err, os.ErrNotExist) && strings.HasPrefix(name, "bridge/")) {
			t.Fatal(err)
		}
	}
}

func dial(address string) string {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	text := make([]byte, 100)
	k, _ := conn.Read(text)
	return string(text[:k])
}

func serve(address, text string) int {
	l, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return 1
		}
		fmt.Fprint(conn, text)
		conn.Close()
	}
}
