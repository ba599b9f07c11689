package keys_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"berth.dev/berth/internal/site/berthd/etcd"
	"berth.dev/berth/internal/site/berthd/keys"
	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

// site is an etcd with keys of 'berthd keys make'.
type site struct {
	dir    keys.Directory
	host   string
	config siteconf.Config
}

// newSite makes keys for the nodes a and b, valid for so many days, and starts an etcd with them.
func newSite(t *testing.T, host string, days int) *site {
	t.Helper()
	s := &site{dir: keys.Directory(filepath.Join(t.TempDir(), "keys")), host: host, config: siteconf.Default()}
	s.config.Pods, s.config.Collect = netip.MustParsePrefix("10.0.0.0/24"), 0
	s.config.Etcd.Endpoints = []string{"https://" + host + ":2379"}
	s.make(t, days)
	s.start(t, host, host+"=https://"+host+":2380")
	return s
}

// start starts a member of etcd, whose name is its address.
func (s *site) start(t *testing.T, host, cluster string) {
	t.Helper()
	at := filepath.Join("etcd", host, "etcd")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- etcd.Run(ctx, siteconf.Etcd{CA: s.path("ca.crt")}, etcd.Member{
			Name: host, Dir: t.TempDir(), Host: host, Cluster: cluster, HTTP: host + ":2381",
			Cert: s.path(at + ".crt"), Key: s.path(at + ".key"), ConnectionAge: time.Second,
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func (s *site) make(t *testing.T, days int) {
	t.Helper()
	if err := s.dir.Make(s.config.Etcd, []string{"a", "b"}, days); err != nil {
		t.Fatal(err)
	}
}

func (s *site) path(name string) string { return filepath.Join(string(s.dir), name) }

// open connects to etcd with a certificate.
func (s *site) open(t *testing.T, name string) *store.Store {
	t.Helper()
	config := s.config
	config.Etcd.CA, config.Etcd.Cert, config.Etcd.Key = s.path("ca.crt"), s.path(name+".crt"), s.path(name+".key")
	opened, err := store.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() })
	return opened
}

// ready waits until etcd answers.
func ready(t *testing.T, s *store.Store) {
	t.Helper()
	for s.Check(t.Context()) != nil {
		if t.Context().Err() != nil {
			t.Fatal("etcd does not answer")
		}
	}
}

// enforced returns a site whose etcd enforces the roles of a and b.
func enforced(t *testing.T, host string) (*site, *clientv3.Client) {
	t.Helper()
	s := newSite(t, host, 1)
	admin := s.open(t, "root")
	ready(t, admin)
	// An upgrade calls it again.
	for range 2 {
		if err := keys.Grant(t.Context(), admin.Client(), []string{"a", "b"}); err != nil {
			t.Fatal(err)
		}
		if err := keys.Enforce(t.Context(), admin.Client()); err != nil {
			t.Fatal(err)
		}
	}
	return s, admin.Client()
}

// The attacker is root of node a.
func TestRolesOfNodes(t *testing.T) {
	s, admin := enforced(t, "127.0.0.94")
	a, b := s.open(t, "nodes/a/node"), s.open(t, "nodes/b/node")
	for node, own := range map[string]*store.Store{"a": a, "b": b} {
		if _, err := own.Register(t.Context(), node, netip.MustParseAddr("192.168.0.1")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Register(t.Context(), "b", netip.MustParseAddr("192.168.0.66")); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("a moves b's tunnels to itself: %v", err)
	}
	client := a.Client()
	lease, err := b.Client().Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Client().Put(t.Context(), store.GatewaysKey+"b", "192.168.0.2", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func(context.Context) error{
		"becomes gateway b": func(ctx context.Context) error {
			_, err := client.Put(ctx, store.GatewaysKey+"b", "192.168.0.66")
			return err
		},
		"removes b": func(ctx context.Context) error { _, err := client.Delete(ctx, store.NodesKey+"b"); return err },
		"removes all nodes": func(ctx context.Context) error {
			_, err := client.Delete(ctx, store.NodesKey, clientv3.WithPrefix())
			return err
		},
		"reads keys of others": func(ctx context.Context) error { _, err := client.Get(ctx, "/other"); return err },
		"reads everything":     func(ctx context.Context) error { _, err := client.Get(ctx, "", clientv3.WithPrefix()); return err },
		"hides a write": func(ctx context.Context) error {
			_, err := client.Txn(ctx).Then(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut(store.NodesKey+"b", "")}, nil)).Commit()
			return err
		},
		"hides a read": func(ctx context.Context) error {
			_, err := client.Txn(ctx).Then(clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpGet("/other")})).Commit()
			return err
		},
		"attaches a key to the lease of b": func(ctx context.Context) error {
			_, err := client.Txn(ctx).Then(clientv3.OpPut(store.GatewaysKey+"a", "", clientv3.WithLease(lease.ID))).Commit()
			return err
		},
		"forgets the past": func(ctx context.Context) error { _, err := client.Compact(ctx, 1); return err },
		"lists members":    func(ctx context.Context) error { _, err := client.MemberList(ctx); return err },
		"clears alarms": func(ctx context.Context) error {
			_, err := client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
			return err
		},
		"ends the lease of b": func(ctx context.Context) error { _, err := client.Revoke(ctx, lease.ID); return err },
		"gives itself a role": func(ctx context.Context) error { _, err := client.UserGrantRole(ctx, "node:a", "node:b"); return err },
		"turns off the roles": func(ctx context.Context) error { _, err := client.AuthDisable(ctx); return err },
		"makes itself a member": func(ctx context.Context) error {
			_, err := client.MemberAdd(ctx, []string{"https://127.0.0.1:9"})
			return err
		},
		"takes a copy of all data": func(ctx context.Context) error { r, err := client.Snapshot(ctx); return errors.Join(err, drain(r)) },
	} {
		if err := do(t.Context()); err == nil {
			t.Errorf("root of a %s", what)
		}
	}
	if err := s.open(t, "etcd/"+s.host+"/etcd").Check(t.Context()); err == nil {
		t.Error("the certificate of a member is a client's")
	}
	// Sessions have a lease, in a transaction.
	own, err := client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := client.Txn(t.Context()).Then(clientv3.OpPut(store.GatewaysKey+"a", "", clientv3.WithLease(own.ID))).Commit(); err != nil {
			t.Errorf("a uses its own lease: %v", err)
		}
	}
	// Both nodes allocate, and leave.
	job := store.Request{Job: 1, UID: 1001, User: "alice", Nodes: []string{"a", "b"}}
	given, err := a.Allocate(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	for node, own := range map[string]*store.Store{"a": a, "b": b} {
		if err := own.Leave(t.Context(), given, node); err != nil {
			t.Error(err)
		}
	}
	if left, err := a.List(t.Context(), ""); err != nil || len(left.Jobs) != 0 {
		t.Errorf("left: %v %v", left.Jobs, err)
	}

	// Watches go on although etcd ends each connection after a second.
	watchers := map[*store.Store]clientv3.WatchChan{}
	for _, own := range []*store.Store{a, b} {
		watchers[own] = own.Client().Watch(clientv3.WithRequireLeader(t.Context()), store.NodesKey, clientv3.WithPrefix())
	}
	for began := time.Now(); time.Since(began) < 8*time.Second; {
		if _, err := admin.Put(t.Context(), store.NodesKey+"c", "192.168.0.3"); err != nil {
			t.Fatal(err)
		}
		for own, events := range watchers {
			if seen, open := <-events; !open || seen.Err() != nil || len(seen.Events) != 1 {
				t.Fatalf("the watch of %v ends: %v", own, seen.Err())
			}
		}
	}
	if err := keys.Expel(t.Context(), admin, "b"); err != nil {
		t.Fatal(err)
	}
	for seen := range watchers[b] {
		if err := seen.Err(); err != nil {
			t.Log("the watch of b ends:", err)
		}
	}
	job.Job = 2
	if _, err := b.Allocate(t.Context(), job); err == nil || !strings.Contains(err.Error(), "berthd keys grant") {
		t.Errorf("b allocates after it was thrown out: %v", err)
	}
	if _, err := a.Allocate(t.Context(), job); err == nil || !strings.Contains(err.Error(), "node b is not registered") {
		t.Errorf("a allocates on b, which was thrown out: %v", err)
	}
	if err := keys.Expel(t.Context(), admin, "b"); err != nil {
		t.Errorf("throw out b again: %v", err)
	}
}

// Roles permit everything that berthd does, also in a new etcd and when many allocate at once.
func TestRolesPermitWorkOfNodes(t *testing.T) {
	s := newSite(t, "127.0.0.93", 1)
	s.config.Collect, s.config.Lease = time.Second, 10*time.Second
	admin := s.open(t, "root")
	ready(t, admin)
	if err := errors.Join(keys.Grant(t.Context(), admin.Client(), []string{"a", "b"}), keys.Enforce(t.Context(), admin.Client())); err != nil {
		t.Fatal(err)
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	nodes := map[string]*store.Store{"a": s.open(t, "nodes/a/node"), "b": s.open(t, "nodes/b/node")}
	for name, node := range nodes {
		_, err := node.Register(t.Context(), name, netip.MustParseAddr("192.168.0.1"))
		must("register", err)
		_, err = node.Nodes(t.Context())
		must("list nodes", err)
		_, err = node.TunnelPorts(t.Context())
		must("list ports", err)
	}
	var group sync.WaitGroup
	for i := range 40 {
		for name, node := range nodes {
			group.Go(func() {
				job := uint32(100*i) + uint32(name[0])
				given, err := node.Allocate(t.Context(), store.Request{Job: job, UID: job, User: "u", Nodes: []string{name}})
				must("allocate", err)
				must("leave", node.Leave(t.Context(), given, name))
			})
		}
	}
	group.Wait()

	a := nodes["a"]
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	leased := make(chan struct{})
	group.Go(func() { _ = a.KeepLease(ctx, slog.New(slog.DiscardHandler), func() { close(leased) }) })
	<-leased
	session, err := a.Allocate(t.Context(), store.Request{Login: "a", UID: 7, User: "u", Nodes: []string{"a"}})
	must("allocate for sessions", err)
	must("hold", a.Hold(t.Context(), session))
	must("publish", a.Publish(t.Context(), session, "a"))
	must("withdraw", a.Withdraw(t.Context(), session, "a"))
	_, err = a.SetNames(t.Context(), session, "a", []string{"web"})
	must("set names", err)
	_, _, err = a.RestoreNames(t.Context(), session, "", []string{"web"})
	must("restore names", err)
	must("free", a.Free(t.Context(), session))
	must("restore", a.Restore(t.Context(), session))
	must("refuse", a.Refuse(t.Context(), siteconf.Allocation{Job: 9, UID: 9, Problem: "none"}))
	_, err = a.List(t.Context(), "")
	must("list", err)
	elected, err := concurrency.NewSession(a.Client())
	must("get a lease", err)
	must("stand for election", concurrency.NewElection(elected, store.CollectorKey).Campaign(t.Context(), "a"))
	must("end the election", elected.Close())
	stop()
	group.Wait()
}

func drain(r interface{ Read([]byte) (int, error) }) error {
	if r == nil {
		return nil
	}
	_, err := r.Read(make([]byte, 1))
	return err
}

// etcd also has a port for its members, and one for HTTP, whose requests it forwards to itself.
func TestOtherPortsOfEtcdAreClosedToNodes(t *testing.T) {
	s, _ := enforced(t, "127.0.0.95")
	info := transport.TLSInfo{CertFile: s.path("nodes/a/node.crt"), KeyFile: s.path("nodes/a/node.key"), TrustedCAFile: s.path("ca.crt")}
	security, err := info.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	node := &http.Client{Transport: &http.Transport{TLSClientConfig: security, DisableKeepAlives: true}}
	for _, what := range []string{"/members", "/raft/stream/message/1"} {
		if answer, err := node.Get("https://" + s.host + ":2380" + what); err == nil {
			t.Errorf("the port of members answers a node: %s", answer.Status)
			answer.Body.Close()
		}
	}
	for _, accept := range []string{"", "application/json"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+s.host+":2381/v3/kv/range", bytes.NewBufferString(`{"key":"AA==","range_end":"AA=="}`))
		if err != nil {
			t.Fatal(err)
		}
		if accept != "" {
			request.Header.Set("Accept", accept)
		}
		answer, err := node.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode == http.StatusOK {
			t.Errorf("a node reads everything by HTTP (Accept: %q)", accept)
		}
		answer.Body.Close()
	}
	// The test's client works: without its certificate there is no answer at all.
	security = security.Clone()
	security.GetClientCertificate = nil
	if conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, "tcp", s.host+":2381", security); err == nil {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("etcd answers without a certificate")
		}
		conn.Close()
	}
}

// A key can be read from each of three members once it was written to one.
func TestMembersAcceptEachOther(t *testing.T) {
	s := &site{dir: keys.Directory(filepath.Join(t.TempDir(), "keys")), config: siteconf.Default()}
	hosts := []string{"127.0.0.97", "127.0.0.98", "127.0.0.99"}
	var cluster []string
	for _, host := range hosts {
		s.config.Etcd.Endpoints = append(s.config.Etcd.Endpoints, "https://"+host+":2379")
		cluster = append(cluster, host+"=https://"+host+":2380")
	}
	s.make(t, 1)
	for _, host := range hosts {
		s.start(t, host, strings.Join(cluster, ","))
	}
	admin := s.open(t, "root")
	ready(t, admin)
	if err := keys.Grant(t.Context(), admin.Client(), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if err := keys.Enforce(t.Context(), admin.Client()); err != nil {
		t.Fatal(err)
	}
	all := s.config.Etcd.Endpoints
	for i := range all {
		s.config.Etcd.Endpoints = all[i : i+1]
		a := s.open(t, "nodes/a/node")
		ready(t, a)
		if _, err := a.Register(t.Context(), "a", netip.AddrFrom4([4]byte{192, 168, 0, byte(i + 1)})); err != nil {
			t.Errorf("by %s: %v", all[i], err)
		}
		lease, err := a.Client().Grant(t.Context(), 60)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Client().Txn(t.Context()).Then(clientv3.OpPut(store.GatewaysKey+"a", "", clientv3.WithLease(lease.ID))).Commit(); err != nil {
			t.Errorf("a lease by %s: %v", all[i], err)
		}
	}
	if err := keys.Relax(t.Context(), admin.Client()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.open(t, "nodes/b/node").Register(t.Context(), "b", netip.MustParseAddr("192.168.0.9")); err != nil {
		t.Errorf("a node without a role, after etcd was relaxed: %v", err)
	}
}

// Neither berthd nor etcd is restarted.
func TestCertificatesAreRenewedWhileInUse(t *testing.T) {
	s := newSite(t, "127.0.0.96", 0)
	a := s.open(t, "nodes/a/node")
	if err := a.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Fatalf("with certificates that have ended: %v", err)
	}
	authority, err := os.ReadFile(s.path("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	s.make(t, 1)
	ready(t, a)
	if now, err := os.ReadFile(s.path("ca.crt")); err != nil || !bytes.Equal(authority, now) {
		t.Errorf("the authority is another: %v", err)
	}
}

func TestKeysAreTheAdministrators(t *testing.T) {
	s := &site{dir: keys.Directory(filepath.Join(t.TempDir(), "keys")), config: siteconf.Default()}
	s.config.Etcd.Endpoints = []string{"https://etcd.example:2379"}
	s.make(t, 1)
	for _, name := range []string{"ca.key", "root.key", "nodes/a/node.key", "etcd/etcd.example/etcd.key"} {
		if at, err := os.Stat(s.path(name)); err != nil || at.Mode() != 0o600 {
			t.Errorf("%s: %v %v", name, at, err)
		}
	}
	if at, err := os.Stat(string(s.dir)); err != nil || at.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v %v", at, err)
	}
	if err := s.dir.Make(s.config.Etcd, nil, 365*20); err == nil || !strings.Contains(err.Error(), "fewer --days") {
		t.Errorf("a certificate outlives its authority: %v", err)
	}
}
