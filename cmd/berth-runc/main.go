// Command berth-runc is runc for pods that have the fast path: their processes
// get its seccomp filter beside whatever profile they have. It installs that on
// itself and becomes runc, whose children inherit it. To have runc install it
// (linux.seccomp.listenerPath) would mean to compose it with every profile in
// the language of libseccomp, which cannot say what i386's socketcall may do,
// and compiles it for 20 ms.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fastpath"
)

// Variables that the shim sets: where a Switch takes filters, what it is told of
// the pod, none for a pod without the fast path, and whether there is one node.
const (
	socketVariable = "BERTH_FAST_PATH"
	podVariable    = "BERTH_FAST_PATH_POD"
	aloneVariable  = "BERTH_FAST_PATH_ALONE"
)

func main() {
	fmt.Fprintln(os.Stderr, "berth-runc:", run()) // where it succeeds, this is runc
	os.Exit(1)
}

func run() error {
	runtime.LockOSThread()
	if pod := os.Getenv(podVariable); pod != "" && startsProcess(os.Args) {
		if err := fastpath.Confine(os.Getenv(socketVariable), pod, os.Getenv(aloneVariable) != ""); err != nil {
			return err
		}
	}
	path, err := exec.LookPath("runc")
	if err != nil {
		return fmt.Errorf("find runc: %w", err)
	}
	return fmt.Errorf("become %s: %w", path, unix.Exec(path, os.Args, os.Environ()))
}

// startsProcess tells whether runc is to make a container or a process in one.
func startsProcess(args []string) bool {
	return slices.Contains(args, "create") || slices.Contains(args, "exec")
}
