// Command nft starts Debian's nft with the loader and the libraries that come
// along in lib/nft beside this program. nft cannot be linked statically from
// what Debian ships, and the host's C library may be older than the one it was
// built for; with its own loader it depends on nothing but the kernel.
//
// kube-proxy and the CNI plugins execute it for every change of rules, so this
// must stay one execve without any search.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	self, err := os.Executable()
	if err == nil {
		lib := filepath.Join(filepath.Dir(self), "lib", "nft")
		err = syscall.Exec(filepath.Join(lib, "ld.so"), arguments(lib, os.Args), environment(os.Environ()))
	}
	fmt.Fprintf(os.Stderr, "nft: start %s with its libraries in lib/nft beside it: %v\n", self, err)
	os.Exit(127)
}

// arguments are those of the loader. The host's cache of libraries is left
// out, because it names libraries of another C library.
func arguments(lib string, args []string) []string {
	loader := []string{"nft", "--inhibit-cache", "--library-path", lib, "--argv0", "nft", filepath.Join(lib, "nft")}
	return append(loader, args[1:]...)
}

// environment drops what would make the loader take in libraries of the host
// (sites that preload a library into every program set LD_PRELOAD), and
// locales, which are files of the host's C library.
func environment(env []string) []string {
	kept := make([]string, 0, len(env)+1)
	for _, e := range env {
		if strings.HasPrefix(e, "LD_") || strings.HasPrefix(e, "LC_") ||
			strings.HasPrefix(e, "LANG") || strings.HasPrefix(e, "GLIBC_TUNABLES=") {
			continue
		}
		kept = append(kept, e)
	}
	return append(kept, "LC_ALL=C")
}
