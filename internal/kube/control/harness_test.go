package control

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/base/pki"
	"berth.dev/berth/internal/kube/control/controltest"
)

// roleVariable turns the test binary into the role. A process can run the role
// only once, so each test starts its own process.
const roleVariable = "BERTH_TEST_CONTROL_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if path := os.Getenv(profileVariable); path != "" {
		defer profile(path)()
	}
	if err := Main(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// profileVariable names a file for a CPU profile of the role, ten times as fine
// as usual because the role's start is so short.
const profileVariable = "BERTH_TEST_CONTROL_PROFILE"

func profile(path string) (stop func()) {
	file, err := os.Create(path)
	if err != nil {
		panic(err)
	}
	runtime.SetCPUProfileRate(1000)
	if err := pprof.StartCPUProfile(file); err != nil {
		panic(err)
	}
	return func() { pprof.StopCPUProfile(); file.Close() }
}

// testTimeout bounds every wait of a test.
const testTimeout = 60 * time.Second

// testCluster holds the inputs of one control plane. It can be started
// repeatedly, but only once at a time.
type testCluster struct {
	plan      cluster.Plan
	listeners []net.Listener // of the namespace, of the host
	// state serves the objects that outlive the cluster; nil if there are none.
	state *net.UnixListener
}

func newTestCluster(t testing.TB) *testCluster {
	t.Helper()
	c := &testCluster{}
	for range 2 {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		c.listeners = append(c.listeners, l)
	}
	c.plan = cluster.Plan{
		RunID:             "test-1",
		KubernetesVersion: "v1.36.3",
		Node:              cluster.Node{Name: "node-1", CPUs: 2, MemoryBytes: 4 << 30, MaxPods: 110},
		Members: []cluster.Member{
			{Name: "node-1", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.42.0.1/32"), netip.MustParsePrefix("fd42::1/128")}},
			{Name: "node-2", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.42.0.2/32"), netip.MustParsePrefix("fd42::2/128")}},
		},
		Addresses: cluster.Addresses{
			Family: cluster.Family{
				Pods:     netip.MustParsePrefix("10.40.0.0/16"),
				NodePods: netip.MustParsePrefix("10.40.0.0/24"),
				Services: netip.MustParsePrefix("10.41.0.0/16"),
				Nodes:    netip.MustParsePrefix("10.42.0.0/16"),
				Node:     netip.MustParseAddr("10.42.0.1"),
			},
			IPv6: &cluster.Family{
				Pods:     netip.MustParsePrefix("fd40::/56"),
				NodePods: netip.MustParsePrefix("fd40::/64"),
				Services: netip.MustParsePrefix("fd41::/112"),
				Nodes:    netip.MustParsePrefix("fd42::/64"),
				Node:     netip.MustParseAddr("fd42::1"),
			},
			APIService:  netip.MustParseAddr("10.41.0.1"),
			DNSService:  netip.MustParseAddr("10.41.0.10"),
			DNS:         netip.MustParseAddr("10.42.255.1"),
			APIPort:     port(c.listeners[0]),
			HostAPIPort: port(c.listeners[1]),
		},
		Paths: cluster.Paths{Run: controltest.Dir(t)},
	}
	controltest.WriteInputs(t, c.plan, map[string]pki.Identity{
		cluster.UserAdmin:             {CommonName: "admin", Groups: []string{"system:masters"}},
		cluster.UserControllerManager: {CommonName: userControllerManager},
		cluster.UserScheduler:         {CommonName: "system:kube-scheduler"},
		cluster.UserKubelet:           {CommonName: "system:node:" + c.plan.Node.Name, Groups: []string{"system:nodes"}},
		cluster.UserProxy:             {CommonName: "system:kube-proxy"},
		cluster.UserDNS:               {CommonName: userDNS},
		cluster.UserProvisioner:       {CommonName: userProvisioner},
	})
	return c
}

func port(l net.Listener) uint16 { return uint16(l.Addr().(*net.TCPAddr).Port) }

// config returns the client configuration from a user's kubeconfig, without a rate
// limit.
func (c *testCluster) config(t testing.TB, user string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.plan.Paths.Kubeconfig(user))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

func (c *testCluster) client(t testing.TB, user string) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.config(t, user))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// testRole is a running control role.
type testRole struct {
	command *exec.Cmd
	began   time.Time
	log     *bytes.Buffer // complete after wait
	exited  chan struct{}
	err     error

	mu      sync.Mutex
	events  []timedEvent
	changed chan struct{} // closed and replaced at each event
}

type timedEvent struct {
	notify.Event
	after time.Duration
}

func (c *testCluster) start(t testing.TB) *testRole {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r := &testRole{log: &bytes.Buffer{}, exited: make(chan struct{}), changed: make(chan struct{})}
	args := []string{"--plan", c.plan.Paths.Plan(), "--notify-fd", "3"}
	files := []*os.File{write}
	for i, l := range c.listeners {
		file, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
		args = append(args, "--listener-fd", fmt.Sprint(4+i))
	}
	if c.state != nil {
		file, err := c.state.File()
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, "--state-fd", fmt.Sprint(3+len(files)))
		files = append(files, file)
	}
	r.command = exec.Command(os.Args[0], args...)
	r.command.Env = append(os.Environ(), roleVariable+"=1")
	r.command.ExtraFiles = files
	r.command.Stderr = r.log
	r.command.Stdout = r.log
	r.began = time.Now()
	if err := r.command.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		f.Close()
	}
	go func() {
		err := notify.Read(read, r.receive)
		read.Close()
		r.err = r.command.Wait()
		if r.err == nil && err != nil {
			r.err = err
		}
		close(r.exited)
	}()
	t.Cleanup(func() {
		_ = r.command.Process.Kill()
		<-r.exited
		if t.Failed() {
			t.Logf("log of the role:\n%s", r.log)
		}
	})
	return r
}

func (r *testRole) receive(e notify.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, timedEvent{e, time.Since(r.began)})
	close(r.changed)
	r.changed = make(chan struct{})
}

// await returns when the role has reported e.
func (r *testRole) await(t testing.TB, e notify.Event) time.Duration {
	t.Helper()
	deadline := time.After(testTimeout)
	for {
		r.mu.Lock()
		i := slices.IndexFunc(r.events, func(had timedEvent) bool {
			return had.Event.Event == e.Event && had.Name == e.Name && had.Error == e.Error
		})
		changed := r.changed
		var after time.Duration
		if i >= 0 {
			after = r.events[i].after
		}
		r.mu.Unlock()
		if i >= 0 {
			return after
		}
		select {
		case <-changed:
		case <-r.exited:
			t.Fatalf("the role ended (%v) before %+v", r.err, e)
		case <-deadline:
			t.Fatalf("no %+v within %v", e, testTimeout)
		}
	}
}

func (r *testRole) awaitReady(t testing.TB) time.Duration {
	t.Helper()
	return r.await(t, notify.Event{Event: notify.KindReady})
}

// stop ends the role and waits for its end.
func (r *testRole) stop(t testing.TB) time.Duration {
	t.Helper()
	began := time.Now()
	if err := r.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.exited:
	case <-time.After(testTimeout):
		t.Fatalf("the role did not stop within %v", testTimeout)
	}
	if r.err != nil {
		t.Errorf("the role ended with %v, want success", r.err)
	}
	return time.Since(began)
}

// eventually polls until check returns nil.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		<-tick.C
	}
}
