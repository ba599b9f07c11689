// Package controltest runs a Kubernetes control plane for tests. It cannot import package
// control, whose own tests use its folder and keys, so each test passes control.Main.
package controltest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/base/pki"
)

// roleVariable is the environment variable that makes the test binary run the control plane
// instead of tests. A process can run it only once, so Start starts a process for it.
const roleVariable = "BERTH_TEST_CONTROL_PLANE"

// Run runs the tests of a package, or the control plane in a process that Start has started. main
// is control.Main. TestMain calls Run and exits with the status that it returns.
func Run(m *testing.M, main func(context.Context, []string) error) int {
	if os.Getenv(roleVariable) == "" {
		return m.Run()
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := main(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Server is a running control plane.
type Server struct {
	address string
	ca      *pki.Authority
}

// Start starts a control plane without nodes, and returns when it is ready. The control plane
// ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	dir := Dir(t)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	plan := newPlan(dir, port)
	s := &Server{address: address(plan)}
	s.ca = WriteInputs(t, plan, map[string]pki.Identity{
		cluster.UserAdmin:             {CommonName: "admin", Groups: []string{"system:masters"}},
		cluster.UserControllerManager: {CommonName: "system:kube-controller-manager"},
		cluster.UserScheduler:         {CommonName: "system:kube-scheduler"},
	})
	s.startProcess(t, plan, listener)
	return s
}

// Dir makes a folder for the files of a control plane. It is on a tmpfs, and is removed when the
// test ends.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "berth-control-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// newPlan returns the plan of a cluster with one node that never joins.
func newPlan(dir string, port uint16) cluster.Plan {
	return cluster.Plan{
		RunID: "test-1", KubernetesVersion: "v1.36.3",
		Node:    cluster.Node{Name: "node-1", CPUs: 2, MemoryBytes: 4 << 30, MaxPods: 110},
		Members: []cluster.Member{{Name: "node-1", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.42.0.1/32")}}},
		Addresses: cluster.Addresses{
			Family: cluster.Family{
				Pods: netip.MustParsePrefix("10.40.0.0/16"), NodePods: netip.MustParsePrefix("10.40.0.0/24"),
				Services: netip.MustParsePrefix("10.41.0.0/16"), Nodes: netip.MustParsePrefix("10.42.0.0/16"), Node: netip.MustParseAddr("10.42.0.1"),
			},
			APIService: netip.MustParseAddr("10.41.0.1"), DNSService: netip.MustParseAddr("10.41.0.10"), DNS: netip.MustParseAddr("10.42.255.1"),
			APIPort: port, HostAPIPort: port,
		},
		Paths: cluster.Paths{Run: dir},
	}
}

// WriteInputs writes the plan of a control plane, its keys, and a kubeconfig for each user, as
// package supervisor does in a run. It returns the authority of the users' certificates.
func WriteInputs(t testing.TB, plan cluster.Plan, users map[string]pki.Identity) *pki.Authority {
	t.Helper()
	ca, proxyCA := newAuthority(t, plan, cluster.CA, "kubernetes-ca"), newAuthority(t, plan, cluster.FrontProxyCA, "front-proxy-ca")
	writePair(t, plan, cluster.FrontProxy, issue(t, proxyCA, pki.Identity{CommonName: "front-proxy-client"}))
	writePair(t, plan, cluster.APIKubelet, issue(t, ca, pki.Identity{CommonName: "kube-apiserver-kubelet-client"}))
	writePair(t, plan, cluster.APIServer, issue(t, ca, pki.Identity{
		CommonName: "kube-apiserver",
		Names:      []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		Addresses:  []netip.Addr{netip.MustParseAddr("127.0.0.1"), plan.Addresses.APIService, plan.Addresses.Node},
	}))
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	WriteFile(t, plan.Paths.PKI(cluster.ServiceTokens+".key"), key)
	for name, identity := range users {
		WriteFile(t, plan.Paths.Kubeconfig(name), pki.Kubeconfig("berth", address(plan), ca.Cert, issue(t, ca, identity)))
	}
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	WriteFile(t, plan.Paths.Plan(), text)
	return ca
}

// address returns the URL of the API server.
func address(plan cluster.Plan) string {
	return fmt.Sprintf("https://127.0.0.1:%d", plan.Addresses.APIPort)
}

func newAuthority(t testing.TB, plan cluster.Plan, file, name string) *pki.Authority {
	t.Helper()
	authority, err := pki.NewAuthority(name)
	if err != nil {
		t.Fatal(err)
	}
	writePair(t, plan, file, authority.Pair)
	return authority
}

func issue(t testing.TB, authority *pki.Authority, identity pki.Identity) pki.Pair {
	t.Helper()
	pair, err := authority.Issue(identity)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func writePair(t testing.TB, plan cluster.Plan, name string, pair pki.Pair) {
	t.Helper()
	WriteFile(t, plan.Paths.PKI(name+".crt"), pair.Cert)
	WriteFile(t, plan.Paths.PKI(name+".key"), pair.Key)
}

// WriteFile writes a file that only this user can read, and makes its folders.
func WriteFile(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// startProcess starts the control plane in a process, and returns when it is ready.
func (s *Server) startProcess(t testing.TB, plan cluster.Plan, listener net.Listener) {
	t.Helper()
	events, notifications, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer // may be read once the process has ended
	command := exec.Command(os.Args[0], "--plan", plan.Paths.Plan(), "--notify-fd", "3", "--listener-fd", "4")
	command.Env = append(os.Environ(), roleVariable+"=1")
	command.ExtraFiles = []*os.File{notifications, file}
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	notifications.Close()
	file.Close()
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_ = notify.Read(events, func(event notify.Event) {
			if event.Event == notify.KindReady {
				close(ready)
			}
		})
		events.Close()
		_ = command.Wait()
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("log of the control plane:\n%s", &log)
		}
	})
	select {
	case <-ready:
	case <-ended:
		t.Fatal("the control plane ended before it was ready")
	}
}

// Config returns the client configuration of a Kubernetes user with groups. Members of the group
// system:masters may do everything.
func (s *Server) Config(t testing.TB, user string, groups ...string) *rest.Config {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(pki.Kubeconfig("berth", s.address, s.ca.Cert, issue(t, s.ca, pki.Identity{CommonName: user, Groups: groups})))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}
