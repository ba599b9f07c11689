package berthd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/site/vxlan"
	"berth.dev/berth/internal/testutil"
)

// If a job's number now belongs to another user, nothing of the former job is
// entered.
func TestPodsOfOtherUsersAreIgnored(t *testing.T) {
	testutil.Require(t, testutil.Root)
	dir := t.TempDir()
	program := filepath.Join(dir, "berth-pod")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pid", "pods"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := siteconf.Config{Run: dir, Pod: program, NFT: "nft"}
	d := newDaemon(config, "n0", netip.Addr{}, newStore(t, testConfig()), nil, slog.New(slog.DiscardHandler))
	defer func() {
		if err := d.pods.unmake("7"); err != nil {
			t.Error(err)
		}
	}()
	// The inode numbers of the network namespace and of the PID namespace.
	last := [2]uint64{}
	for _, step := range []struct {
		uid  uint32
		made bool
	}{{1001, true}, {1001, false}, {1002, true}} {
		a, err := d.store.Allocate(t.Context(), store.Request{Job: 7, UID: step.uid, User: "somebody", Name: "x", Nodes: []string{"n0"}})
		if err != nil {
			t.Fatal(err)
		}
		made, err := d.add(t.Context(), a)
		if err != nil || made != step.made {
			t.Fatalf("user %d: made %t, %v", step.uid, made, err)
		}
		if got := d.pods.local["7"].UID; got != step.uid {
			t.Errorf("the pod is user %d's, want %d's", got, step.uid)
		}
		var now [2]uint64
		for i, path := range []string{d.pods.namespace("7"), d.pods.processes.File("7")} {
			// Keep it open, or the next one may get its inode number.
			file, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			var stat unix.Stat_t
			if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
				t.Fatal(err)
			}
			now[i] = stat.Ino
			if (now[i] != last[i]) != step.made {
				t.Errorf("user %d: namespace %s is %d, was %d", step.uid, path, now[i], last[i])
			}
		}
		last = now
	}
	d.background.Wait()
	left, err := d.store.Client().Get(t.Context(), siteconf.Prefix+"networks/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range left.Kvs {
		if strings.Contains(string(kv.Key), "1001") {
			t.Errorf("the former user keeps %s", kv.Key)
		}
	}
}

// A job ends while the last packet of one of its connections is lost. Its interface goes
// only when the packet has arrived.
func TestReleaseAwaitsLastPacket(t *testing.T) {
	testutil.Require(t, testutil.Root)
	dir := t.TempDir()
	for _, name := range []string{"pid", "pods"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var d *daemon
	applied := 0
	kernel := kernelFunc(func(bool) error {
		applied++
		now, end := context.WithCancel(t.Context())
		end()
		if err := vxlan.AwaitSent(now, d.pods.namespace("7")); err != nil {
			t.Errorf("when the interface goes: %v", err)
		}
		return nil
	})
	program := filepath.Join(dir, "berth-pod")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	d = newDaemon(siteconf.Config{Run: dir, Pod: program, NFT: "nft"}, "n0", netip.Addr{}, newStore(t, testConfig()), kernel, slog.New(slog.DiscardHandler))
	d.lastWords = time.Minute
	a, err := d.store.Allocate(t.Context(), store.Request{Job: 7, UID: 1001, User: "somebody", Name: "x", Nodes: []string{"n0"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.add(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	inside := func(do func() error) {
		t.Helper()
		if err := linux.InNetworkNamespace(d.pods.namespace("7"), do); err != nil {
			t.Fatal(err)
		}
	}
	var here, there net.Conn
	inside(func() error {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer listener.Close()
		if here, err = net.Dial("tcp4", listener.Addr().String()); err != nil {
			return err
		}
		if there, err = listener.Accept(); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		return errors.Join(err, netlink.LinkSetDown(lo), here.Close())
	})
	defer there.Close()
	released := make(chan error)
	go func() { released <- d.release(t.Context(), "7") }()
	<-time.After(betweenTries) // release may look before and after the loopback is back
	inside(func() error { return testutil.SetUpLink("lo") })
	if err := <-released; err != nil {
		t.Error(err)
	}
	d.background.Wait()
	if applied == 0 || d.pods.has("7") {
		t.Error("the job still has its network")
	}
}

// betweenTries leaves release time to look at the connections, as it does every 10 ms.
const betweenTries = 50 * time.Millisecond

// All of berthd's limits for etcd in sequence end two seconds before the plugin's
// limit for berthd.
func TestPluginWaitsLongerThanBerthd(t *testing.T) {
	text, err := os.ReadFile("../../../spank/client.c")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`ANSWER_LIMIT = (\d+) `).FindSubmatch(text)
	if found == nil {
		t.Fatal("the plugin has no ANSWER_LIMIT")
	}
	seconds, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	if own := attachTimeout + store.LeaveLimit*time.Second + refuseLimit; own+2*time.Second > time.Duration(seconds)*time.Second {
		t.Errorf("berthd answers after %s, the plugin waits %d s", own, seconds)
	}
}

// A job that the range of pods can never hold is not held in the queue, on any of its nodes. A job
// of a node without berthd may be mended.
func TestJobThatIsTooLargeIsNotHeld(t *testing.T) {
	config := testConfig()
	config.Pods, config.Run = netip.MustParsePrefix("10.128.0.0/30"), t.TempDir()
	shared := newStore(t, config)
	for _, test := range []struct {
		name  string
		nodes []string
		later bool
	}{{"too large", []string{"n0", "n1"}, false}, {"not registered", []string{"n9"}, true}} {
		request := store.Request{Job: 7, UID: 1001, User: "somebody", Name: "x", Nodes: test.nodes}
		if !test.later {
			request.Job = 8
		}
		for _, node := range []string{"n0", "n1"} {
			d := newDaemon(config, node, netip.Addr{}, shared, nil, slog.New(slog.DiscardHandler))
			d.watch.start(t.Context(), false)
			_, err := d.attach(t.Context(), request, attachTimeout)
			if err == nil || errors.As(err, new(*noNetwork)) != test.later {
				t.Errorf("%s, on %s: may come later %v: %v", test.name, node, !test.later, err)
			}
			request.Nodes = nil // the other node learns from etcd
		}
	}
}
