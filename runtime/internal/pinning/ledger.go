// Package pinning chooses the CPUs of a container among the node's CPUs, and
// binds the container's processes to them. Without a cgroup nothing else keeps
// a container to its CPU limit, and programs size themselves by their affinity.
//
// Package bundle reads the limit of a container from its specification.
package pinning

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"
)

// lockTimeout bounds the wait for another shim, which normally holds the lock for
// microseconds. A shim stopped by SIGSTOP must not block the pods of the node.
const lockTimeout = time.Second

// Ledger is a file that the shims of a node share. It holds the CPUs of each
// container, so that the next container gets the least used ones.
type Ledger struct {
	path string
	// alive reports whether the process that made a claim still runs.
	alive func(pid int, start uint64) bool
	self  owner
}

// owner identifies a shim. Process ids are reused; ids with their start times are
// not.
type owner struct {
	PID   int
	Start uint64
}

// claim is a line of the file.
type claim struct {
	Container string
	// Milli is the CPU limit in thousandths of a CPU.
	Milli int64
	CPUs  string
	Owner owner
}

// NewLedger returns the ledger at path for the process pid that began at start. The
// first claim creates the file.
func NewLedger(path string, pid int, start uint64, alive func(pid int, start uint64) bool) *Ledger {
	return &Ledger{path: path, alive: alive, self: owner{pid, start}}
}

// Claim chooses from all CPUs the least used ones for a container with a limit in
// thousandths of a CPU, rounded up. It replaces an earlier claim of the container,
// and prefers the CPUs of that claim. A container without a limit, or with a limit
// of all CPUs, gets all of them and is not counted.
func (l *Ledger) Claim(container string, milli int64, all cpuset.CPUSet) (cpuset.CPUSet, error) {
	want := int((milli + 999) / 1000)
	if milli <= 0 || want >= all.Size() {
		return all, l.Release(container)
	}
	var chosen cpuset.CPUSet
	err := l.change(func(claims []claim) []claim {
		var before cpuset.CPUSet
		if i := slices.IndexFunc(claims, func(c claim) bool { return c.Container == container }); i >= 0 {
			before, _ = cpuset.Parse(claims[i].CPUs)
			claims = slices.Delete(claims, i, i+1)
		}
		chosen = leastUsed(claims, before.Intersection(all), all, want)
		return append(claims, claim{container, milli, chosen.String(), l.self})
	})
	return chosen, err
}

// Release removes the claim of a container. It is no error if there is none.
func (l *Ledger) Release(container string) error {
	if _, err := os.Stat(l.path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return l.change(func(claims []claim) []claim {
		return slices.DeleteFunc(claims, func(c claim) bool { return c.Container == container })
	})
}

// leastUsed returns the CPUs with the lowest sum of limits. Among equals it prefers
// CPUs of the container's earlier claim, and then chooses at random, because
// another run on the same machine has another ledger.
func leastUsed(claims []claim, before, all cpuset.CPUSet, want int) cpuset.CPUSet {
	load := map[int]float64{}
	for _, c := range claims {
		cpus, err := cpuset.Parse(c.CPUs)
		if err != nil || cpus.Size() == 0 {
			continue
		}
		for _, cpu := range cpus.UnsortedList() {
			load[cpu] += float64(c.Milli) / float64(cpus.Size())
		}
	}
	order := all.List()
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	rank := func(cpu int) int {
		if before.Contains(cpu) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(load[a], load[b]), cmp.Compare(rank(a), rank(b)))
	})
	return cpuset.New(order[:want]...)
}

// change calls a function with the claims of running shims, and writes the claims that it
// returns. It holds the lock meanwhile. The claims of killed shims are dropped.
func (l *Ledger) change(change func([]claim) []claim) error {
	file, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open list of CPUs in use: %w", err)
	}
	defer file.Close()
	if err := lock(file); err != nil {
		return fmt.Errorf("lock list of CPUs in use %s: %w", l.path, err)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return fmt.Errorf("read list of CPUs in use: %w", err)
	}
	var claims []claim
	for line := range strings.Lines(string(text)) {
		var c claim
		// Ignore an unfinished line of a killed shim.
		if json.Unmarshal([]byte(line), &c) == nil && (c.Owner == l.self || l.alive(c.Owner.PID, c.Owner.Start)) {
			claims = append(claims, c)
		}
	}
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	for _, c := range change(claims) {
		if err := encoder.Encode(c); err != nil {
			return fmt.Errorf("encode list of CPUs in use: %w", err)
		}
	}
	if _, err := file.WriteAt([]byte(out.String()), 0); err != nil {
		return fmt.Errorf("write list of CPUs in use: %w", err)
	}
	if err := file.Truncate(int64(out.Len())); err != nil {
		return fmt.Errorf("write list of CPUs in use: %w", err)
	}
	return nil
}

func lock(file *os.File) error {
	deadline := time.Now().Add(lockTimeout)
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}
