package runtimeconf

import (
	"fmt"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/cluster"
)

// RegistryHostsFile is where RegistryHosts belongs: what it says holds for
// every registry without a directory of its own.
func RegistryHostsFile(p cluster.Paths) string {
	return filepath.Join(p.RegistryHosts(), "_default", "hosts.toml")
}

// RegistryHosts returns the text of RegistryHostsFile, nil where pulls go
// straight to the registries. The local mirror is asked first; with NoPull
// nothing else is.
func RegistryHosts(plan cluster.Plan) []byte {
	mirror := plan.Registries.Mirror
	if mirror == "" && !plan.Registries.NoPull {
		return nil
	}
	if mirror == "" {
		// Port 9 discards: the pull fails at once instead of asking a
		// network that may not even answer.
		mirror = "127.0.0.1:9"
	}
	var out strings.Builder
	fmt.Fprintf(&out, "# Made by berth for %s.\n", plan.RunID)
	if plan.Registries.NoPull {
		fmt.Fprintf(&out, "server = \"http://%s\"\n", mirror)
	}
	fmt.Fprintf(&out, "\n[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", mirror)
	return []byte(out.String())
}
