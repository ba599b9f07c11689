package procstats

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// usage is the resource usage of a container, a pod or the node.
type usage struct {
	cpu       time.Duration // since it started; never falls
	rate      float64       // processors in use, over the last window
	anonymous uint64        // bytes that no file backs
	working   uint64        // working set: bytes that would be free after its end
	processes uint64
}

func (u *usage) add(v usage) {
	u.cpu += v.cpu
	u.rate += v.rate
	u.anonymous += v.anonymous
	u.working += v.working
	u.processes += v.processes
}

// snapshot is the result of one pass over all processes.
type snapshot struct {
	at         time.Time
	node       usage
	containers map[*container]usage
	volumes    map[string]uint64 // bytes in memory volumes, by pod
}

// pssBound is the largest resident size, in bytes, of a container with several processes
// whose page tables the kernel walks to compute their shares (PSS). It is 64 Ki pages,
// which take some milliseconds.
const pssBound = 256 << 20

// window is the time after which a counter starts a new average of the CPU rate.
const window = 5 * time.Second

// counter turns the CPU time of the living processes into a total that never falls, and
// into a rate. The sum falls when a process ends and its parent does not wait for it.
type counter struct {
	last, total time.Duration
	mark        time.Duration // total at markAt
	markAt      time.Time
	rate        float64
}

func (c *counter) observe(sum time.Duration, now time.Time) {
	if c.markAt.IsZero() {
		c.markAt = now
		c.total = sum
		c.mark = sum
	} else if sum > c.last {
		c.total += sum - c.last
	}
	c.last = sum
	if past := now.Sub(c.markAt); past > 0 {
		c.rate = float64(c.total-c.mark) / float64(past)
		if past >= window {
			c.mark, c.markAt = c.total, now
		}
	}
}

// meter measures the processes of the node.
type meter struct {
	procs   *table
	bundles *bundles
	ownNS   func() string
	// tmpfs returns the bytes in all tmpfs mounts, even if no process maps them, and the
	// bytes in the volumes of each pod.
	tmpfs func() (uint64, map[string]uint64)
	now   func() time.Time
	every time.Duration

	mu       sync.Mutex
	last     *snapshot
	node     counter
	counters map[string]*counter // by container id
}

// snapshot returns the last snapshot, or measures again if it is older than every.
func (m *meter) snapshot() (*snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if m.last != nil && now.Sub(m.last.at) < m.every {
		return m.last, nil
	}
	// List containers first, so that the container of each process is known.
	containers, err := m.bundles.list()
	if err != nil {
		return nil, err
	}
	processes, err := m.procs.read()
	if err != nil {
		return nil, err
	}
	owner := assign(processes, containers, m.ownNS())

	groups := make(map[*container][]process, len(containers))
	s := &snapshot{at: now, containers: make(map[*container]usage, len(containers))}
	for pid, p := range processes {
		s.node.cpu += p.CPU()
		s.node.anonymous += p.anonymous()
		s.node.processes++
		if c := owner[pid]; c != nil {
			groups[c] = append(groups[c], p)
		}
	}
	// File pages do not count for the node: they are cache that the kernel can reclaim,
	// and are shared by all processes that map them.
	tmpfs, volumes := m.tmpfs()
	s.node.working, s.volumes = s.node.anonymous+tmpfs, volumes
	m.node.observe(s.node.cpu, now)
	s.node.cpu, s.node.rate = m.node.total, m.node.rate

	alive := make(map[string]*counter, len(groups))
	for c, group := range groups {
		k := m.counters[c.id]
		if k == nil {
			k = &counter{}
		}
		alive[c.id] = k
		u := m.sum(group)
		k.observe(u.cpu, now)
		u.cpu, u.rate = k.total, k.rate
		s.containers[c] = u
	}
	m.counters = alive
	m.last = s
	return s, nil
}

// sum returns the usage of the processes of one container. A page that several of them
// share counts once. That is exact below pssBound. For larger containers, sum counts
// only the largest shared part of a process.
func (m *meter) sum(group []process) usage {
	var u usage
	var resident, shared uint64
	for _, p := range group {
		u.cpu += p.CPU()
		u.anonymous += p.anonymous()
		u.processes++
		resident += p.Resident
		shared = max(shared, min(p.shared, p.Resident))
	}
	u.working = u.anonymous + shared
	if len(group) > 1 && resident <= pssBound {
		var pss uint64
		for _, p := range group {
			n, err := m.procs.pss(p.PID)
			if err != nil {
				return u // the process has ended, or may not be inspected
			}
			pss += n
		}
		u.working = pss
	}
	return u
}

// pods returns the usage of each pod: of its containers, and the memory in its volumes,
// which stays when the container that wrote it ends.
func (s *snapshot) pods() map[string]usage {
	pods := map[string]usage{}
	for c, u := range s.containers {
		p := pods[c.uid]
		p.add(u)
		pods[c.uid] = p
	}
	for uid, bytes := range s.volumes {
		if p, ok := pods[uid]; ok {
			p.working += bytes
			pods[uid] = p
		}
	}
	return pods
}

// sorted returns the containers in a fixed order.
func (s *snapshot) sorted() []*container {
	return slices.SortedFunc(maps.Keys(s.containers), func(a, b *container) int {
		return a.created.Compare(b.created)
	})
}
