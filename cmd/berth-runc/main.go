// Command berth-runc is runc for pods with the fast path: their processes get the
// fast path's seccomp filter in addition to any profile. berth-runc installs the filter
// on itself and becomes runc, whose children inherit the filter. Rejected alternative: runc
// could install it (linux.seccomp.listenerPath), but the filter would have to be
// combined with every profile in libseccomp's language. That language cannot
// describe what i386's socketcall may do, and it takes 20 ms to compile.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath"
)

// Variables that the shim sets: the socket where a Switch receives filters, the
// description of the pod for the Switch (none for a pod without the fast path), whether
// there is only one node, and the memory in bytes that each container may use.
const (
	socketVariable = "BERTH_FAST_PATH"
	podVariable    = "BERTH_FAST_PATH_POD"
	aloneVariable  = "BERTH_FAST_PATH_ALONE"
	memoryVariable = "BERTH_MEMORY_OF_CONTAINERS"
)

func main() {
	fmt.Fprintln(os.Stderr, "berth-runc:", run()) // run returns only if it cannot execute runc
	os.Exit(1)
}

func run() error {
	runtime.LockOSThread()
	if pod := os.Getenv(podVariable); pod != "" && startsProcess(os.Args) {
		if err := fastpath.Confine(os.Getenv(socketVariable), pod, os.Getenv(aloneVariable) != "", memoryOf(os.Args[len(os.Args)-1])); err != nil {
			return err
		}
	}
	path, err := exec.LookPath("runc")
	if err != nil {
		return fmt.Errorf("find runc: %w", err)
	}
	return fmt.Errorf("become %s: %w", path, unix.Exec(path, os.Args, os.Environ()))
}

// memoryOf returns the memory of a container, whose id is the last argument of runc. It
// returns 0 if no memory is given for the container.
func memoryOf(id string) uint64 {
	var all map[string]uint64
	if err := json.Unmarshal([]byte(os.Getenv(memoryVariable)), &all); err != nil {
		return 0
	}
	return all[id]
}

// startsProcess reports whether runc makes a container or a process in one.
func startsProcess(args []string) bool {
	return slices.Contains(args, "create") || slices.Contains(args, "exec")
}
