package fastpath

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
	"berth.dev/berth/internal/network/share"
)

func newTestState(t *testing.T) *state {
	t.Helper()
	file, err := NewState()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s, err := openState(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

// Without a free record, calls of all pods fail. A pod that takes all records that it
// can get leaves some to other pods, and can still call. An accepted connection has
// the place of the parked one.
func TestOnePodCannotTakeAllRecords(t *testing.T) {
	s := newTestState(t)
	greedy, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	var named []kind
	s.refused = func(k kind, pod netip.Addr) {
		if pod != greedy {
			t.Errorf("pod %v was refused", pod)
		}
		named = append(named, k)
	}
	var taken []*record
	for _, k := range []kind{kindParked, kindCall} {
		before := len(taken)
		for r := s.take(k, greedy); r != nil; r = s.take(k, greedy) {
			taken = append(taken, r)
		}
		if want := map[kind]int{kindParked: numRecords * 5 / 8 * 3 / 4, kindCall: numRecords / 4 * 3 / 4}[k]; len(taken)-before != want {
			t.Errorf("one pod gets %d records of kind %d, want %d", len(taken)-before, k, want)
		}
	}
	if len(named) != 2 || named[0] != kindParked || named[1] != kindCall {
		t.Errorf("refused kinds %v", named)
	}
	for range 1000 {
		for _, k := range []kind{kindSwitched, kindCall} {
			r := s.take(k, other)
			if r == nil {
				t.Fatalf("another pod gets no record of kind %d", k)
			}
			taken = append(taken, r)
		}
	}
	accepted := s.takeFrom(kindSwitched, taken[0])
	s.put(taken[0])
	taken[0] = accepted
	if s.take(kindSwitched, greedy) != nil {
		t.Error("the place of an accepted connection is free")
	}
	for _, r := range taken {
		s.put(r)
	}
	if s.calls.Taken() != 0 || s.others.Taken() != 0 || len(s.owners) != 0 || len(s.free) != numRecords {
		t.Errorf("left: %d calls, %d others, %d owners, %d records", s.calls.Taken(), s.others.Taken(), len(s.owners), numRecords-len(s.free))
	}
}

// A successor knows which pods have the records.
func TestSuccessorSharesRecords(t *testing.T) {
	file, err := NewState()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	pod := netip.MustParseAddr("10.0.0.1")
	for want := range 3 {
		s, err := openState(file)
		if err != nil {
			t.Fatal(err)
		}
		if taken := s.others.Taken(); taken != want {
			t.Errorf("%d records are shared, want %d", taken, want)
		}
		s.take(kindSwitched, pod).local = packEnd(netip.AddrPortFrom(pod, 80))
		s.take(kindCall, pod) // which names no pod
		s.close()
	}
}

// Parked connections take descriptors of the Switch: a pod that accepts none leaves
// places to others. A promised connection is parked again in any case.
func TestOnePodCannotParkAllConnections(t *testing.T) {
	shared := &shared{state: newTestState(t)}
	sweep := newAlarm(func() {})
	t.Cleanup(sweep.close)
	in := &inbound{shared: shared, places: share.New(16), sockets: newSockets(shared, nil, nil, sweep)}
	park := func(address string, promised bool) bool {
		c := &incoming{in: in, pod: &pod{address: netip.MustParseAddr(address)}}
		return c.takeParked(promised) != nil
	}
	parked := 0
	for park("10.0.0.1", false) {
		parked++
	}
	if parked != 12 {
		t.Errorf("one pod parks %d connections, want 12", parked)
	}
	if !park("10.0.0.2", false) {
		t.Error("another pod parks none")
	}
	if !park("10.0.0.1", true) {
		t.Error("a promised connection is not parked")
	}
}

// A parked connection whose pod ends while its bell rings again is reset: no program will
// accept it.
func TestConnectionOfEndedPodIsReset(t *testing.T) {
	in := newInbound(t)
	in.state, in.places = newTestState(t), share.New(16)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	p := in.pods.at(ownPod.Addr())
	p.network.Store(1)
	p.close()
	c := &incoming{in: in, fd: fds[0], pod: p, ends: ends{ownPod, otherPod}}
	c.ring()
	if n, err := unix.Read(fds[1], make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("the connection is open: %d bytes, %v", n, err)
	}
	if len(in.parked) != 0 || in.places.Taken() != 0 || p.parked.Load() != 0 {
		t.Errorf("%d parked, %d places, %d of the pod", len(in.parked), in.places.Taken(), p.parked.Load())
	}
}

// The records of closed connections count in a pod's share. When that is why a connection
// is not parked, they are removed.
func TestRefusedParkingRemovesClosedConnections(t *testing.T) {
	shared := &shared{state: newTestState(t)}
	sweep := newAlarm(func() {})
	t.Cleanup(sweep.close)
	in := &inbound{shared: shared, places: share.New(16), sockets: newSockets(shared, nil, nil, sweep)}
	c := &incoming{in: in, pod: &pod{address: netip.MustParseAddr("10.0.0.1")}}
	for shared.state.take(kindSwitched, c.pod.address) != nil {
	}
	if c.takeParked(false) != nil || in.places.Taken() != 0 {
		t.Fatalf("a connection is parked above the pod's share; %d are", in.places.Taken())
	}
	if !in.sockets.forget {
		t.Error("the records of closed connections are not removed")
	}
}

// A container whose filter is refused has no network. So a pod that has its share of the
// records, perhaps of connections, can still start one.
func TestPodAtItsShareStartsContainer(t *testing.T) {
	r, err := newReactor()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	s := &Switch{
		shared: &shared{state: newTestState(t), reactor: r, log: slog.New(slog.DiscardHandler)},
		pods:   &pods{byAddress: map[netip.Addr]*pod{}},
	}
	address := netip.MustParseAddr("10.0.0.1")
	for s.state.take(kindSwitched, address) != nil {
	}
	filter, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(filter)
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer sock.CloseAll(ends[:]...)
	message, err := json.Marshal(processState{Version: "1.2.0", Fds: []string{filterName}, Metadata: "10.0.0.1 7"})
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(ends[0], message, unix.UnixRights(filter), nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.takeDelivery(ends[1]); err != nil {
		t.Fatal(err)
	}
	pod := s.pods.at(address)
	if pod == nil || len(pod.containers) != 1 {
		t.Fatalf("the pod has no container: %+v", pod)
	}
	unix.Close(pod.containers[0].fd)
}
