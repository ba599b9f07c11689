package store

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/berthd/etcd/etcdtest"
	"berth.dev/berth/internal/site/siteconf"
)

// newStore returns a store in a real etcd that listens on the loopback.
func newStore(t testing.TB, pods string) *Store {
	t.Helper()
	return storeAt(t, etcdtest.New(t), pods)
}

// storeAt returns a store in an existing etcd.
func storeAt(t testing.TB, client *clientv3.Client, pods string) *Store {
	t.Helper()
	config := siteconf.Default()
	config.Pods, config.Collect = netip.MustParsePrefix(pods), 0
	s := New(client, config)
	for i := range 4 {
		if _, err := s.Register(t.Context(), fmt.Sprintf("n%d", i), netip.AddrFrom4([4]byte{192, 168, 0, byte(i + 1)})); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func request(job, uid uint32) Request {
	return Request{Job: job, UID: uid, User: "somebody", Name: "x", Nodes: []string{"n0", "n1", "n2"}}
}

// allocateAll allocates for many jobs concurrently, some of them of one user.
func allocateAll(t *testing.T, s *Store, jobs int) []siteconf.Allocation {
	t.Helper()
	all := make([]siteconf.Allocation, jobs)
	var group sync.WaitGroup
	for i := range jobs {
		group.Go(func() {
			var err error
			if all[i], err = s.Allocate(t.Context(), request(uint32(i), uint32(1000+i/3))); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	return all
}

func TestNoAddressIsGivenTwice(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	jobs := map[netip.Addr]uint32{}
	users := map[uint32]uint32{}
	for _, a := range allocateAll(t, s, 60) {
		for _, pod := range a.Pods {
			if other, twice := jobs[pod.Address]; twice || pod.Address == s.config.Gateway() || !s.config.Pods.Contains(pod.Address) {
				t.Errorf("job %d has %s, and so has %d", a.Job, pod.Address, other)
			}
			jobs[pod.Address] = a.Job
		}
		if uid, known := users[a.VNI]; known && uid != a.UID {
			t.Errorf("users %d and %d have network %d", uid, a.UID, a.VNI)
		}
		users[a.VNI] = a.UID
	}
	if len(jobs) != 180 || len(users) != 20 {
		t.Errorf("%d addresses, %d networks", len(jobs), len(users))
	}
}

func TestAllAddressesAreReturned(t *testing.T) {
	s := newStore(t, "10.128.0.0/28")
	for range 3 {
		all := allocateAll(t, s, 4)
		if _, err := s.Allocate(t.Context(), request(99, 99)); err == nil || !strings.Contains(err.Error(), "are taken") {
			t.Fatalf("a job too many: %v", err)
		}
		// A repeated request returns the same addresses.
		if again, err := s.Allocate(t.Context(), request(0, 1000)); err != nil || !slices.Equal(again.Pods, all[0].Pods) {
			t.Fatalf("again: %v, %v", again, err)
		}
		var group sync.WaitGroup
		for _, a := range all {
			for _, pod := range a.Pods {
				group.Go(func() {
					if err := s.Leave(t.Context(), a, pod.Node); err != nil {
						t.Error(err)
					}
				})
			}
		}
		group.Wait()
		if left, err := s.List(t.Context(), ""); err != nil || len(left.Jobs) != 0 {
			t.Fatalf("left: %v, %v", left, err)
		}
	}
	got, err := s.client.Get(t.Context(), siteconf.Prefix+"left/", clientv3.WithPrefix())
	if err != nil || got.Count != 0 {
		t.Errorf("%d notes of nodes are left, %v", got.Count, err)
	}
}

func TestReusedJobNumberFreesNothing(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	former, err := s.Allocate(t.Context(), request(1, 1000))
	if err != nil {
		t.Fatal(err)
	}
	again := request(1, 1000)
	again.Nodes = []string{"n3"}
	now, err := s.Allocate(t.Context(), again)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range former.Pods {
		if err := s.Leave(t.Context(), former, pod.Node); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := s.List(t.Context(), "1000"); err != nil || len(all.Jobs) != 1 || !slices.Equal(all.Jobs["1"].Pods, now.Pods) {
		t.Errorf("got %v, %v, want %v", all, err, now)
	}
}

// A program in a job that asks for a host must not find a job of that name.
func TestJobNamedLikeHostHasOnlyItsNumber(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	for job, want := range map[string]string{"n2": "7", "n5": "n5"} {
		r := request(7, 1000)
		r.Name = job
		a, err := s.Allocate(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if a.JobLabel() != want || a.Name != job {
			t.Errorf("job %q has the label %q, want %q", job, a.JobLabel(), want)
		}
		if err := s.Free(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKeysLostByEtcdAreRestored(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	mine, err := s.Allocate(t.Context(), request(1, 1000))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Free(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	if err := s.Restore(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	if all, err := s.List(t.Context(), "1000"); err != nil || !slices.Equal(all.Jobs["1"].Pods, mine.Pods) {
		t.Errorf("got %v, %v", all, err)
	}
	theirs := mine
	theirs.Job, theirs.UID, theirs.VNI = 2, 1001, mine.VNI+1
	if err := s.Restore(t.Context(), theirs); err == nil || !strings.Contains(err.Error(), "somebody else") {
		t.Errorf("addresses of another job: %v", err)
	}
	theirs.Pods, theirs.VNI = nil, mine.VNI
	if err := s.Restore(t.Context(), theirs); err == nil || !strings.Contains(err.Error(), "somebody else") {
		t.Errorf("network of another user: %v", err)
	}
}

// The age of etcd does not depend on any clock, neither of the first node that wrote
// nor of this one, even if that clock is set forward or back.
func TestNewEtcdWaits(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	s.config.Collect = time.Hour
	if _, err := s.client.Delete(t.Context(), bornKey); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.Register(t.Context(), "n0", netip.MustParseAddr("192.168.0.1")); err != nil {
			t.Fatal(err)
		}
	}
	known, err := s.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, clock := range []string{"0", "1", "9999999999"} {
		if _, err := s.client.Put(t.Context(), bornKey, clock); err != nil {
			t.Fatal(err)
		}
		if err := allocateWithin(t, s, 200*time.Millisecond); err == nil || !strings.Contains(err.Error(), "etcd is new") {
			t.Errorf("an etcd that is new, its first node's clock at %s: %v", clock, err)
		}
	}
	waits := make(chan error, 1)
	go func() { waits <- s.settle(t.Context(), known) }()
	if _, err := s.client.Revoke(t.Context(), known.young); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; err != nil {
		t.Errorf("when it is no longer new: %v", err)
	}
	if _, err := s.Register(t.Context(), "n0", netip.MustParseAddr("192.168.0.1")); err != nil {
		t.Fatal(err)
	}
	if known, err = s.read(t.Context()); err != nil || known.young != clientv3.NoLease {
		t.Errorf("it is new again: %v, %v", known.young, err)
	}
}

// allocateWithin returns the error of an allocation while etcd is new. It retries
// with a longer limit if the limit ends before etcd has answered.
func allocateWithin(t *testing.T, s *Store, limit time.Duration) error {
	t.Helper()
	short, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	_, err := s.Allocate(short, Request{Job: 1, UID: 1000, Nodes: []string{"n0"}})
	if err != nil && !strings.Contains(err.Error(), "etcd is new") && limit < time.Minute {
		return allocateWithin(t, s, 2*limit)
	}
	return err
}

// A group may have the same name as a part of keys.
func TestGroupNames(t *testing.T) {
	for _, group := range []string{"at", "pods"} {
		t.Run(group, func(t *testing.T) {
			s := newStore(t, "10.128.0.0/24")
			theirs, err := s.Allocate(t.Context(), Request{Job: 1, UID: 1000, Group: group, Nodes: []string{"n0", "n1"}})
			if err != nil {
				t.Fatal(err)
			}
			others, err := s.Allocate(t.Context(), Request{Job: 2, UID: 1001, Nodes: []string{"n0"}})
			if err != nil {
				t.Fatal(err)
			}
			for _, pod := range theirs.Pods {
				if pod.Address == others.Pods[0].Address {
					t.Errorf("%s is of both", pod.Address)
				}
			}
			s.config.CNI.List = "/site.conflist"
			by, err := s.Allocate(t.Context(), Request{Job: 3, UID: 1000, Group: group, Nodes: []string{"n0"}})
			if err != nil {
				t.Fatal(err)
			}
			address := netip.MustParseAddr("10.128.0.200")
			if err := s.Publish(t.Context(), by.With("n0", address), "n0"); err != nil {
				t.Fatal(err)
			}
			known, err := s.List(t.Context(), "")
			if err != nil || len(known.Jobs) != 3 || known.At[Part{"3", by.After, "n0"}] != address {
				t.Errorf("%+v, %v", known, err)
			}
			if _, err := s.Allocate(t.Context(), Request{Job: 4, UID: 1001, Nodes: []string{"n0"}}); err != nil {
				t.Error(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var seen []string
			err = s.Watch(ctx, "", theirs.After, func(c Change) {
				if c.Allocation != nil {
					seen = append(seen, c.ID)
				}
				if c.At != nil {
					seen = append(seen, c.Address.String())
				}
				if c.ID == "4" {
					cancel()
				}
			})
			if want := []string{"1", "2", "3", "10.128.0.200", "4"}; !slices.Equal(seen, want) {
				t.Errorf("watched: %v, want %v (%v)", seen, want, err)
			}
		})
	}
}

func TestSessionAddressFollowsLease(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	sessions := Request{UID: 1000, User: "somebody", Login: "n3", Nodes: []string{"n3"}}
	if _, err := s.Allocate(t.Context(), sessions); err == nil || !strings.Contains(err.Error(), "no lease") {
		t.Errorf("without a lease: %v", err)
	}
	var leases []clientv3.LeaseID
	grant := func() {
		lease, err := s.client.Grant(t.Context(), 60)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease.ID)
		s.lease.Store(int64(lease.ID))
	}
	grant()
	a, err := s.Allocate(t.Context(), sessions)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Allocate(t.Context(), request(1, 1000)); err != nil {
		t.Fatal(err)
	}
	grant()
	if err := s.Hold(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{2, 1} {
		if _, err := s.client.Revoke(t.Context(), leases[i]); err != nil {
			t.Fatal(err)
		}
		if all, err := s.List(t.Context(), ""); err != nil || len(all.Jobs) != want {
			t.Errorf("after the end of lease %d: %v, %v, want %d", i, all, err, want)
		}
	}
	grant()
	if err := s.Restore(t.Context(), a); err != nil {
		t.Error(err)
	}
	if all, err := s.List(t.Context(), ""); err != nil || !slices.Equal(all.Jobs[a.ID()].Pods, a.Pods) {
		t.Errorf("restored: %v, %v", all, err)
	}
}

// Users of a group get one network, and also keep their own.
func TestGroupNetwork(t *testing.T) {
	s := newStore(t, "10.128.0.0/24")
	allocate := func(job, uid uint32, group string) siteconf.Allocation {
		a, err := s.Allocate(t.Context(), Request{Job: job, UID: uid, Group: group, Nodes: []string{"n0"}})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	carol, dave, before := allocate(1, 1000, "lab"), allocate(2, 1001, "lab"), allocate(3, 1000, "")
	if carol.VNI != dave.VNI || carol.VNI == before.VNI {
		t.Errorf("networks %d, %d, without the group %d", carol.VNI, dave.VNI, before.VNI)
	}
	if all, err := s.List(t.Context(), "lab"); err != nil || len(all.Jobs) != 2 {
		t.Errorf("in the network of the group: %v, %v", all, err)
	}
	if err := s.Free(t.Context(), carol); err != nil {
		t.Fatal(err)
	}
	if err := s.Restore(t.Context(), carol); err != nil {
		t.Error(err)
	}
	if err := s.Restore(t.Context(), siteconf.Allocation{Job: 9, UID: 1002, VNI: carol.VNI}); err == nil {
		t.Error("somebody else gets the network of the group")
	}
}
