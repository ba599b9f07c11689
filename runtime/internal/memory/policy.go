// Package memory enforces containers' memory limits without a cgroup. It
// measures their memory often enough that a container that begins to allocate
// at the machine's full speed is ended soon after it passes its limit.
//
// It decides when to measure and when to act. The caller supplies the figures
// and ends containers.
//
// Rejected as a second line of defence: RLIMIT_AS and RLIMIT_DATA count reserved
// memory, not used memory. Java, Go, CUDA and sanitizers reserve many times what
// they touch and would fail at a limit that they never reach; and a failed mmap
// is not the OOMKilled that Kubernetes promises. The second line is the kernel's
// OOM killer: containers have an oom_score_adj above all processes of berth, so
// it kills them first.
package memory

import "time"

// Policy controls how often to measure.
type Policy struct {
	// Burst is the assumed growth rate, in bytes per second, of a container that
	// was idle until now.
	Burst float64
	// Allowance is the number of bytes that a container may pass its limit by before
	// that is noticed. It must fit into the memory reserved for berth itself.
	Allowance float64
	// Shortest and Longest bound the time between two measurements.
	Shortest, Longest time.Duration
	// If nothing of a pod has run for Quiet, the pod is measured Slack times less
	// often. A pod that wakes up and grows at once at full speed passes its limit by
	// that much more. In return the many pods that only wait cost almost nothing.
	Quiet time.Duration
	Slack int
	// Rest is the least ratio of the pause after a measurement to its duration.
	// It bounds the watcher's processor time.
	Rest int
}

// DefaultPolicy returns a policy that measures an empty container with a limit of 100 MB
// about 17 times a second while its pod runs, and about four times when the pod is quiet.
// It measures an empty container with a limit of 4 GB once a second. Measuring a container that has not run takes a system call per process,
// and costs mostly the wake-up.
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

// interval returns the time until the next measurement of a container that holds
// used bytes of limit and has grown by rate bytes per second since the last one.
func (p Policy) interval(used, limit uint64, rate float64) time.Duration {
	room := 0.0
	if limit > used {
		room = float64(limit - used)
	}
	seconds := (room + p.Allowance) / p.Burst
	if rate > 0 {
		// Half of the remaining time, so that measurements of a steadily growing
		// container come closer and closer.
		seconds = min(seconds, room/rate/2)
	}
	// Compared as float: a huge limit would overflow a Duration.
	if seconds >= p.Longest.Seconds() {
		return p.Longest
	}
	return max(time.Duration(seconds*float64(time.Second)), p.Shortest)
}
