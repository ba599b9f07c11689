package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

const (
	// shortIdle is the idle time after which a DNS or echo flow ends.
	shortIdle = 15 * time.Second
	// sweepEvery is the time between searches for idle flows, while there are flows.
	sweepEvery = 5 * time.Second
	// datagram is the size of a buffer for any datagram, in bytes.
	datagram = 1 << 16
)

// flowKey identifies a UDP or echo flow. The identifier of an echo flow takes the place
// of the pod's port.
type flowKey struct {
	protocol    tcpip.TransportProtocolNumber
	pod, remote netip.AddrPort
}

// flow is a connected datagram socket of the host. It receives datagrams only from the
// remote end, because it is connected.
type flow struct {
	table *flowTable
	key   flowKey
	conn  interface{ Close() error }
	raw   syscall.RawConn
	// deliver sends a received datagram to the pod.
	deliver func(payload []byte)
	// port is the host's port that the flows of the pod's socket share, or 0 if this flow
	// has another one.
	port uint16
	idle time.Duration // the time without a datagram after which the flow ends
	used atomic.Int64  // the time of the last datagram, in nanoseconds since birth
}

// flowTable holds the open flows of a run.
type flowTable struct {
	engine *engine
	birth  time.Time
	// scratch holds a datagram of a pod. It belongs to the goroutine that reads the device.
	scratch [datagram]byte

	readers sync.WaitGroup
	mu      sync.Mutex
	flows   map[flowKey]*flow
	ofPod   map[netip.Addr]int // number of flows
	ports   map[netip.AddrPort]*sharedPort
	sweeper *time.Timer
	closed  bool
}

// sharedPort is the host's port of one socket of a pod.
type sharedPort struct {
	port  uint16
	users int
}

func newFlowTable(e *engine) *flowTable {
	return &flowTable{
		engine: e,
		birth:  time.Now(),
		flows:  make(map[flowKey]*flow),
		ofPod:  make(map[netip.Addr]int),
		ports:  make(map[netip.AddrPort]*sharedPort),
	}
}

// find returns the flow of key, and opens it if there is none yet. It returns the error of
// open, or os.ErrClosed after close. Only one goroutine may call it at a time.
func (t *flowTable) find(key flowKey, open func(*flow) error) (*flow, error) {
	t.mu.Lock()
	existing := t.flows[key]
	t.mu.Unlock()
	if existing != nil {
		return existing, nil
	}
	created := &flow{table: t, key: key, idle: t.engine.FlowIdle}
	if key.protocol != header.UDPProtocolNumber || key.remote.Port() == dnsPort {
		created.idle = min(created.idle, shortIdle)
	}
	if err := open(created); err != nil {
		return nil, err
	}
	created.touch()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		created.conn.Close()
		return nil, os.ErrClosed
	}
	if len(t.flows) >= t.engine.Flows {
		t.evict()
	}
	t.flows[key] = created
	t.ofPod[key.pod.Addr()]++
	if created.port != 0 {
		if shared := t.ports[key.pod]; shared == nil {
			t.ports[key.pod] = &sharedPort{port: created.port, users: 1}
		} else if shared.port == created.port {
			shared.users++
		} else {
			created.port = 0
		}
	}
	created.gauge().enter()
	t.readers.Go(created.receive)
	if t.sweeper == nil {
		t.sweeper = time.AfterFunc(t.sweepPeriod(), t.sweep)
	}
	return created, nil
}

// hostPort returns the port of the host that flows of a pod's socket already use.
func (t *flowTable) hostPort(pod netip.AddrPort) (uint16, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if shared := t.ports[pod]; shared != nil {
		return shared.port, true
	}
	return 0, false
}

// evict ends a flow of the pod with the most flows: the flow that has been idle longest.
// The caller holds the lock.
func (t *flowTable) evict() {
	var most netip.Addr
	for pod, flows := range t.ofPod {
		if flows > t.ofPod[most] {
			most = pod
		}
	}
	var oldest *flow
	for _, f := range t.flows {
		if f.key.pod.Addr() == most && (oldest == nil || f.used.Load() < oldest.used.Load()) {
			oldest = f
		}
	}
	t.engine.Counters.overflow.Add(1)
	t.engine.warnOnce(fmt.Sprintf("ended idle UDP flows to the outside: the pods have %d, most of them pod %v", t.engine.Flows, most))
	t.remove(oldest)
}

// remove closes a flow. The caller holds the lock.
func (t *flowTable) remove(f *flow) {
	if t.flows[f.key] != f {
		return
	}
	delete(t.flows, f.key)
	if t.ofPod[f.key.pod.Addr()]--; t.ofPod[f.key.pod.Addr()] == 0 {
		delete(t.ofPod, f.key.pod.Addr())
	}
	if shared := t.ports[f.key.pod]; shared != nil && f.port != 0 {
		if shared.users--; shared.users == 0 {
			delete(t.ports, f.key.pod)
		}
	}
	f.gauge().leave()
	f.conn.Close()
}

func (t *flowTable) sweepPeriod() time.Duration { return min(sweepEvery, t.engine.FlowIdle/2) }

// sweep ends idle flows. It schedules the next sweep only while there are flows, so that
// the process sleeps without traffic.
func (t *flowTable) sweep() {
	now := time.Since(t.birth)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.flows {
		if now-time.Duration(f.used.Load()) > f.idle {
			t.remove(f)
		}
	}
	t.sweeper = nil
	if len(t.flows) > 0 && !t.closed {
		t.sweeper = time.AfterFunc(t.sweepPeriod(), t.sweep)
	}
}

// close ends all flows and waits for their goroutines.
func (t *flowTable) close() {
	t.mu.Lock()
	t.closed = true
	if t.sweeper != nil {
		t.sweeper.Stop()
	}
	for _, f := range t.flows {
		t.remove(f)
	}
	t.mu.Unlock()
	t.readers.Wait()
}

func (f *flow) gauge() *gauge {
	if f.key.protocol == header.UDPProtocolNumber {
		return &f.table.engine.Counters.udp
	}
	return &f.table.engine.Counters.echo
}

func (f *flow) touch() { f.used.Store(int64(time.Since(f.table.birth))) }

// send sends a datagram. It does not block, and returns EAGAIN if the host's buffer is
// full.
func (f *flow) send(payload []byte) error {
	f.touch()
	var failure error
	err := f.raw.Write(func(fd uintptr) bool {
		_, failure = unix.Write(int(fd), payload)
		if failure == unix.ECONNREFUSED {
			// The error belongs to an earlier datagram, and receive has not read it
			// yet.
			_, failure = unix.Write(int(fd), payload)
		}
		return true
	})
	return errors.Join(err, failure)
}

// discard reads all datagrams that have arrived, and drops them.
func (f *flow) discard() {
	var one [1]byte
	_ = f.raw.Read(func(fd uintptr) bool {
		for {
			if _, err := unix.Read(int(fd), one[:]); err == unix.EAGAIN {
				return true
			}
		}
	})
}

// datagramBuffers are held only while a datagram is on its way.
var datagramBuffers = sync.Pool{New: func() any { return new([datagram]byte) }}

// receive delivers datagrams until the flow is closed or its socket fails, and then removes
// the flow.
func (f *flow) receive() {
	_ = f.raw.Read(func(fd uintptr) bool {
		buffer := datagramBuffers.Get().(*[datagram]byte)
		defer datagramBuffers.Put(buffer)
		for {
			n, err := unix.Read(int(fd), buffer[:])
			switch err {
			case nil:
				f.touch()
				f.deliver(buffer[:n])
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.EACCES, unix.EMSGSIZE, unix.EPROTO:
				// An ICMP error arrived for an earlier datagram. The socket stays usable.
				f.table.engine.rejectDatagram(f.key, err)
			default:
				return true
			}
		}
	})
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	f.table.remove(f)
}
