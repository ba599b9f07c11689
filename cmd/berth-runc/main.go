// Command berth-runc is runc for pods that have the fast path: their processes
// get its seccomp filter beside whatever profile they have. It installs that on
// itself and becomes runc, whose children inherit it. To have runc install it
// (linux.seccomp.listenerPath) would mean to compose it with every profile in
// the language of libseccomp, which cannot say what i386's socketcall may do,
// and compiles it for 20 ms.
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

// Variables that the shim sets: where a Switch takes filters, what it is told of
// the pod, none for a pod without the fast path, whether there is one node, and
// the memory in bytes that each container may use.
const (
	socketVariable = "BERTH_FAST_PATH"
	podVariable    = "BERTH_FAST_PATH_POD"
	aloneVariable  = "BERTH_FAST_PATH_ALONE"
	memoryVariable = "BERTH_MEMORY_OF_CONTAINERS"
)

func main() {
	fmt.Fprintln(os.Stderr, "berth-runc:", run()) // where it succeeds, this is runc
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

// memoryOf returns the memory of a container, whose id ends the command line of
// runc; 0 where nothing is said of it.
func memoryOf(id string) uint64 {
	var all map[string]uint64
	if err := json.Unmarshal([]byte(os.Getenv(memoryVariable)), &all); err != nil {
		return 0
	}
	return all[id]
}

// startsProcess tells whether runc is to make a container or a process in one.
func startsProcess(args []string) bool {
	return slices.Contains(args, "create") || slices.Contains(args, "exec")
}
