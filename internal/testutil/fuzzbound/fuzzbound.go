// Package fuzzbound bounds the memory and CPU time that one input of a fuzz
// target may use. An input that exceeds a bound fails, like an input that crashes.
// Only tests import this package. Other modules compile it through a symbolic
// link, so it imports only the standard library.
package fuzzbound

import (
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"syscall"
	"testing"
	"time"
)

const (
	// maxMemory bounds the bytes that one input allocates on the heap, including
	// garbage. The size of the live heap is not used, because it depends on the times
	// of garbage collections.
	maxMemory = 256 << 20
	// maxCPU bounds the CPU time of the process during one input. Unlike the wall
	// time, it does not grow on a loaded machine.
	maxCPU = time.Second
	// maxBlocked bounds the wall time of an input that waits without using CPU.
	maxBlocked = 2 * time.Minute
)

// Watch fails the test of one input if the process exceeds a bound before the test
// ends. Each fuzz target calls it first. If the target does not return, Watch ends
// the process, and the fuzzing engine keeps the input.
//
// A process runs one input at a time, so everything that it uses counts for the input.
func Watch(t testing.TB) {
	begin := now()
	// The fuzzing engine does not limit the time of one input.
	var watchdog *time.Timer
	watchdog = time.AfterFunc(maxCPU, func() {
		reason := now().sub(begin).exceeded()
		if reason == "" && time.Since(begin.at) > maxBlocked {
			reason = fmt.Sprintf("has not returned for %v", maxBlocked)
		}
		if reason == "" {
			watchdog.Reset(maxCPU / 4)
			return
		}
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		fmt.Fprintf(os.Stderr, "fuzzbound: the input %s\n%s", reason, stacks)
		os.Exit(2)
	})
	t.Cleanup(func() {
		used := now().sub(begin)
		watchdog.Stop()
		if reason := used.exceeded(); reason != "" {
			t.Errorf("fuzzbound: the input %s", reason)
		}
	})
}

// usage holds the bytes that the process has allocated, and its CPU time, at one time.
type usage struct {
	memory uint64
	cpu    time.Duration
	at     time.Time
}

// now returns the usage since the start of the process.
func now() usage {
	sample := [1]metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample[:])
	var spent syscall.Rusage
	// Getrusage fails only for invalid arguments.
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &spent)
	return usage{
		memory: sample[0].Value.Uint64(),
		cpu:    time.Duration(spent.Utime.Nano() + spent.Stime.Nano()),
		at:     time.Now(),
	}
}

// sub returns the usage since an earlier time.
func (u usage) sub(earlier usage) usage {
	return usage{memory: u.memory - earlier.memory, cpu: u.cpu - earlier.cpu, at: u.at}
}

// exceeded describes the bound that the usage exceeds. It returns "" if there is none.
func (u usage) exceeded() string {
	switch {
	case u.memory > maxMemory:
		return fmt.Sprintf("allocates %d MiB, more than %d", u.memory>>20, maxMemory>>20)
	case u.cpu > maxCPU:
		return fmt.Sprintf("takes %v of CPU time, more than %v", u.cpu.Round(time.Millisecond), maxCPU)
	}
	return ""
}
