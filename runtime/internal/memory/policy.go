// Package memory enforces the memory limits of containers where no cgroup
// does: it watches what they hold, often enough that a container which begins
// to allocate as fast as the machine can is ended soon after its limit.
//
// It decides when to look and when to act. Where the figures come from and
// how a container is ended is the caller's.
//
// Rejected as a second line of defence: RLIMIT_AS and RLIMIT_DATA count what
// is reserved, not what is used. Java, Go, CUDA and sanitizers reserve many
// times what they touch and would fail on a limit that they never reach; and a
// failed mmap is not the OOMKilled that Kubernetes promises. The second line is
// the kernel's own: containers carry an oom_score_adj above all of berth's, so
// that what gets past the watcher hits them first.
package memory

import "time"

// Policy says how often to look.
type Policy struct {
	// Burst is the rate, in bytes per second, at which a container that was
	// idle until now is assumed to be able to grow.
	Burst float64
	// Allowance is by how many bytes a container may pass its limit before
	// it is noticed. It has to fit into what is reserved for berth itself.
	Allowance float64
	// Shortest and Longest bound the time between two looks.
	Shortest, Longest time.Duration
	// Nothing of a pod has run for Quiet: then it is looked at Slack times
	// less often. A pod that wakes up and grows at once at full speed passes
	// its limit by that much more; in return the many that only wait cost
	// next to nothing.
	Quiet time.Duration
	Slack int
	// Rest is how many times longer than the looking itself the pause after
	// it is at least: it bounds the processor time of the watcher.
	Rest int
}

// DefaultPolicy looks at a container with a limit of 100 MB some twenty times a
// second while it runs, five times when it is quiet, and at one with 4 GB once.
// A look at what has not run is a system call per process, and costs mostly the
// waking up.
func DefaultPolicy() Policy {
	return Policy{
		// One thread that touches fresh pages reaches 2 to 3 GB/s with small
		// pages and almost 4 with huge ones.
		Burst:     4e9,
		Allowance: 128 << 20,
		Shortest:  2 * time.Millisecond,
		Longest:   time.Second,
		Quiet:     5 * time.Second,
		Slack:     4,
		Rest:      4,
	}
}

// Interval returns the time until the next look at a container that holds
// used bytes of limit and has grown by rate bytes per second since the last.
func (p Policy) Interval(used, limit uint64, rate float64) time.Duration {
	room := 0.0
	if limit > used {
		room = float64(limit - used)
	}
	seconds := (room + p.Allowance) / p.Burst
	if rate > 0 {
		// Half of the time that is left, so that a steady growth is met by
		// ever closer looks.
		seconds = min(seconds, room/rate/2)
	}
	// Compared as float: a huge limit would overflow a Duration.
	if seconds >= p.Longest.Seconds() {
		return p.Longest
	}
	return max(time.Duration(seconds*float64(time.Second)), p.Shortest)
}
