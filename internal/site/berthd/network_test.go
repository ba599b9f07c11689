package berthd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth.dev/berth/internal/site/berthd/etcd/etcdtest"
	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/nametable"
	"berth.dev/berth/internal/site/podcni"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/site/vxlan"
)

// plugin assigns the address in the file beside it. Other files make it fail or hang.
const plugin = `#!/bin/sh
dir=${0%/*}
cat >/dev/null
while [ -e "$dir/HANG-$CNI_COMMAND" ]; do sleep 0.01; done
if [ -e "$dir/FAIL-$CNI_COMMAND" ]; then echo '{"cniVersion":"1.0.0","code":999,"msg":"no"}'; exit 1; fi
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
ADD) echo '{"cniVersion":"1.0.0","ips":[{"address":"'"$(cat "$dir/address")"'/24"}]}' ;;
esac
`

// kernelFunc is a kernel that only calls the function with check.
type kernelFunc func(check bool) error

func (a kernelFunc) Apply(_ context.Context, _ vxlan.State, check bool) error { return a(check) }

// testConfig returns a configuration for tests.
func testConfig() siteconf.Config {
	config := siteconf.Default()
	config.Pods, config.Collect = netip.MustParsePrefix("10.128.0.0/24"), 0
	return config
}

// newStore returns a store in a new etcd where four nodes are registered.
func newStore(t *testing.T, config siteconf.Config) *store.Store {
	t.Helper()
	s := store.New(etcdtest.New(t), config)
	for i := range 4 {
		if _, err := s.Register(t.Context(), fmt.Sprintf("n%d", i), netip.AddrFrom4([4]byte{192, 168, 0, byte(i + 1)})); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// wired is the part of a berthd on n0 that has plugins connect pods.
type wired struct {
	*daemon
	t   *testing.T
	dir string
}

func newWired(t *testing.T) *wired {
	t.Helper()
	w := &wired{t: t, dir: t.TempDir()}
	if err := os.Chmod(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w.write("plugin", plugin, 0o755)
	w.write("site.conflist", `{"cniVersion":"1.0.0","name":"site","plugins":[{"type":"plugin"}]}`, 0o644)
	config := testConfig()
	config.CNI.List, config.DNS.Program = filepath.Join(w.dir, "site.conflist"), ""
	config.Audit = filepath.Join(w.dir, "audit.log")
	w.daemon = newDaemon(config, "n0", netip.Addr{}, newStore(t, config), kernelFunc(func(bool) error { return nil }), slog.New(slog.DiscardHandler))
	network, err := podcni.Open(t.Context(), config.CNI.List, []string{w.dir}, filepath.Join(w.dir, "state"), func() { w.touch() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { network.Close() })
	w.network.plugins.cni = network
	return w
}

func (w *wired) write(name, text string, mode os.FileMode) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), mode); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wired) remove(name string) {
	w.t.Helper()
	if err := os.Remove(filepath.Join(w.dir, name)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wired) allocate(job, uid uint32) siteconf.Allocation {
	w.t.Helper()
	a, err := w.store.Allocate(w.t.Context(), store.Request{Job: job, UID: uid, Nodes: []string{"n0", "n1"}})
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// plug applies until all plugins have finished.
func (w *wired) plug(check bool) {
	w.t.Helper()
	w.connectOnce(check)
	w.await("plugins have ended", func() bool {
		if w.network.plugins.anyPending() {
			w.connectOnce(false)
		}
		return !w.network.plugins.anyPending()
	})
}

func (w *wired) connectOnce(check bool) {
	w.t.Helper()
	ids, err := w.network.plugins.connect(w.t.Context(), check)
	if err != nil {
		w.t.Fatal(err)
	}
	w.pods.mu.Lock()
	defer w.pods.mu.Unlock()
	for _, id := range ids {
		w.pods.local[id].ready = true
	}
}

// reconciling applies what changes until the test ends.
func (w *wired) reconciling() {
	ctx, cancel := context.WithCancel(w.t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := w.network.reconcile(ctx); err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(func() {
		cancel()
		ended.Wait()
	})
}

// following follows an owner until the test ends.
func (w *wired) following(owner string) *follower {
	ctx, cancel := context.WithCancel(w.t.Context())
	f := newFollower(owner, cancel)
	w.watch.networks[owner] = f
	w.watch.users[owner]++
	var ended sync.WaitGroup
	ended.Go(func() { w.watch.run(ctx, f) })
	w.t.Cleanup(func() {
		cancel()
		ended.Wait()
	})
	return f
}

func (w *wired) await(what string, holds func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("not so after a minute: %s", what)
		}
	}
}

// known returns the address that etcd holds for the pod of an allocation here.
func (w *wired) known(a siteconf.Allocation) string {
	w.t.Helper()
	known, err := w.store.List(w.t.Context(), "")
	if err != nil {
		w.t.Fatal(err)
	}
	return known.At[store.PartOf(a, w.node)].String()
}

// An interface is broken and cannot be created again at first. etcd removes the
// address, which may belong to another pod by then, and later gets the new one.
func TestNewAddressesOfPodsArePublished(t *testing.T) {
	w := newWired(t)
	a := w.allocate(1, 1000)
	w.pods.put(&localPod{Allocation: a})
	w.write("address", "10.128.0.7", 0o644)
	w.plug(false)
	request := store.Request{Job: 1, UID: 1000}
	if _, attached := w.pods.attached(request); attached {
		t.Error("a step would run before etcd knows the address")
	}
	if err := w.network.plugins.publish(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	if pod, attached := w.pods.attached(request); !attached || pod.Address.String() != "10.128.0.7" || w.known(a) != "10.128.0.7" {
		t.Errorf("%v, %t, etcd has %s", pod, attached, w.known(a))
	}
	w.following("1000")
	w.write("FAIL-CHECK", "", 0o644)
	w.write("FAIL-ADD", "", 0o644)
	w.plug(true)
	w.await("etcd has no address of a pod that has none", func() bool { return w.known(a) == "invalid IP" })
	w.remove("FAIL-CHECK")
	w.remove("FAIL-ADD")
	w.write("address", "10.128.0.9", 0o644)
	w.plug(true)
	w.await("etcd has the new address", func() bool { return w.known(a) == "10.128.0.9" })
	w.await("steps run", func() bool { _, attached := w.pods.attached(request); return attached })
	// It also works without a failure in between.
	w.write("FAIL-CHECK", "", 0o644)
	w.write("address", "10.128.0.11", 0o644)
	w.plug(true)
	w.await("etcd has the newest address", func() bool { return w.known(a) == "10.128.0.11" })
}

// A pod whose address cannot be published runs no steps, and does not affect other
// jobs.
func TestUnpublishedPodAffectsNoOther(t *testing.T) {
	w := newWired(t)
	theirs, mine := w.allocate(1, 1000), w.allocate(2, 1001)
	address := netip.MustParseAddr("10.128.0.7")
	if err := w.store.Publish(t.Context(), theirs.With("n1", address), "n1"); err != nil {
		t.Fatal(err)
	}
	w.pods.put(&localPod{Allocation: mine})
	w.write("address", address.String(), 0o644)
	w.plug(false)
	if err := w.network.plugins.publish(t.Context(), "2"); err == nil || !strings.Contains(err.Error(), "1 on n1 has it") {
		t.Errorf("an address of another pod: %v", err)
	}
	request := store.Request{Job: 2, UID: 1001}
	if _, attached := w.pods.attached(request); attached {
		t.Error("the next step would run")
	}
	f := w.following("1001")
	w.await("its owner is followed", func() bool { return f.all()["2"].Job == 2 })
	w.allocate(3, 1001)
	w.await("its owner's next job is seen", func() bool { return f.all()["3"].Job == 3 })
	if err := w.store.Free(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	w.plug(true)
	w.await("the address is published when nobody else has it", func() bool {
		_, attached := w.pods.attached(request)
		return attached && w.known(mine) == address.String()
	})
}

// After a restart of berthd, steps of existing jobs need no etcd.
func TestPodOfPreviousDaemonIsPublished(t *testing.T) {
	w := newWired(t)
	a := w.allocate(1, 1000)
	w.pods.put(&localPod{Allocation: a})
	w.write("address", "10.128.0.7", 0o644)
	w.plug(false)
	w.pods.put(&localPod{Allocation: a, loaded: true})
	w.plug(true)
	if _, attached := w.pods.attached(store.Request{Job: 1, UID: 1000}); !attached {
		t.Error("a step would wait for etcd")
	}
	// The previous daemon may have died before it published the address.
	w.following("1000")
	w.await("etcd has the address", func() bool { return w.known(a) == "10.128.0.7" })
}

// A step continues when the names of its pod are known, or returns the error. It does
// not matter which goroutine learned first that the plugins have finished.
func TestStepWaitsForPodNames(t *testing.T) {
	for _, fails := range []bool{false, true} {
		w := newWired(t)
		a := w.allocate(1, 1000)
		w.pods.put(&localPod{Allocation: a})
		w.following("1000")
		w.write("address", "10.128.0.7", 0o644)
		w.write("HANG-ADD", "", 0o644)
		w.reconciling()
		var pod siteconf.Pod
		var err error
		attached := make(chan struct{})
		go func() {
			defer close(attached)
			pod, err = w.attach(t.Context(), store.Request{Job: 1, UID: 1000}, attachTimeout)
		}()
		w.await("plugins are asked", w.network.plugins.anyPending)
		// This goroutine learns that the plugins have ended. While it holds applying, no
		// other one can be blocked at the names and keep it from that.
		w.network.applying.Lock()
		known, problem := make(chan struct{}), error(nil)
		if fails {
			problem = errors.New("no space for names")
		}
		w.network.applyNames = func(*nametable.Table) error {
			<-known
			return problem
		}
		w.remove("HANG-ADD")
		w.await("plugins have ended", func() bool {
			if _, problem := w.network.plugins.connect(t.Context(), false); problem != nil {
				t.Error(problem)
			}
			return !w.network.plugins.anyPending()
		})
		w.network.applying.Unlock()
		select {
		case <-attached:
			t.Errorf("before its names are known: %v, %v", pod, err)
		case <-time.After(100 * time.Millisecond):
		}
		close(known)
		<-attached
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), "no space for names")):
			t.Errorf("its names cannot be written: %v, %v", pod, err)
		case !fails && (err != nil || pod.Address.String() != "10.128.0.7"):
			t.Errorf("its names are known: %v, %v", pod, err)
		}
	}
}

// The outage that cut off etcd may have removed the host's routes. Changes without an
// outage are no reason for a full check.
func TestFullResyncWhenEtcdReturns(t *testing.T) {
	w := newWired(t)
	w.network.plugins.cni = nil
	var applied, looked atomic.Int64
	w.network.kernel = kernelFunc(func(check bool) error {
		applied.Add(1)
		if check {
			looked.Add(1)
		}
		return nil
	})
	f := w.following("1000")
	w.reconciling()
	w.await("the first answer is applied", func() bool { return applied.Load() > 0 })
	w.allocate(1, 1000)
	w.await("its owner's job is seen", func() bool { return f.all()["1"].Job == 1 })
	before := applied.Load()
	w.touch()
	w.await("that is applied", func() bool { return applied.Load() > before })
	if looked.Load() > 0 {
		t.Error("all was looked at though etcd had not been away")
	}
	w.relist()
	w.await("all is looked at", func() bool { return looked.Load() > 0 })
}

// A host that reaches all pods keeps the routes of the previous daemon until etcd,
// which may be unavailable, has answered.
func TestRoutesStayUntilEtcdAnswers(t *testing.T) {
	w := newWired(t)
	w.network.plugins.cni = nil
	w.network.led = []vxlan.Peer{{Address: netip.MustParseAddr("10.128.0.9"), Via: netip.MustParseAddr("192.168.0.9")}}
	outside := func() []vxlan.Peer {
		s, _ := w.network.state()
		return s.Outside
	}
	if got := outside(); !slices.Equal(got, w.network.led) {
		t.Errorf("before etcd is asked: %v, want %v", got, w.network.led)
	}
	w.watch.everybody = newFollower("", func() {})
	w.watch.everybody.fail(errors.New("etcd does not answer"))
	if got := outside(); !slices.Equal(got, w.network.led) {
		t.Errorf("without etcd: %v, want %v", got, w.network.led)
	}
	w.watch.everybody.set(store.Listing{})
	if got := outside(); len(got) > 0 {
		t.Errorf("etcd knows of none: %v", got)
	}
	w.watch.everybody.fail(errors.New("etcd does not answer"))
	if got := outside(); len(got) > 0 {
		t.Errorf("etcd is away later: %v", got)
	}
}

// After a site has changed from plugins to tunnels, some allocations have no addresses. Links
// are named after addresses, so these pods are left out, and the others are connected.
func TestPodsWithoutAddressesAreLeftOut(t *testing.T) {
	w := newWired(t)
	w.network.plugins.cni = nil
	pods := func(here, there string) []siteconf.Pod {
		of := func(text string) (a netip.Addr) {
			if text != "" {
				a = netip.MustParseAddr(text)
			}
			return a
		}
		via := netip.MustParseAddr("192.168.0.9")
		return []siteconf.Pod{{Node: "n0", Address: of(here), Via: via}, {Node: "n1", Address: of(there), Via: via}}
	}
	w.pods.put(&localPod{Allocation: siteconf.Allocation{Job: 1, UID: 1000, VNI: 1, Pods: pods("", "")}})
	w.pods.put(&localPod{Allocation: siteconf.Allocation{Job: 2, UID: 1000, VNI: 1, Pods: pods("10.128.0.2", "10.128.0.3")}})
	w.pods.put(&localPod{Allocation: siteconf.Allocation{Job: 3, UID: 1001, VNI: 2, Pods: pods("", "10.128.0.4")}})
	w.watch.everybody = newFollower("", func() {})
	w.watch.everybody.set(store.Listing{Jobs: map[string]siteconf.Allocation{"9": {Job: 9, Pods: pods("", "")}}})
	s, ids := w.network.state()
	if !slices.Equal(ids, []string{"2"}) || len(s.Networks) != 1 || len(s.Networks[0].Local) != 1 || len(s.Networks[0].Peers) != 1 || len(s.Outside) > 0 {
		t.Errorf("%v, networks %+v, outside %v", ids, s.Networks, s.Outside)
	}
	if err := w.pods.problem("1"); err == nil || !strings.Contains(err.Error(), "it has no address") {
		t.Errorf("its steps read: %v", err)
	}
}
