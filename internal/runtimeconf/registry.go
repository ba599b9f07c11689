package runtimeconf

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/cluster"
)

// RegistryHosts returns containerd's hosts.toml files by their paths: what is
// asked for an image of which registry. The local mirror comes first. With
// NoPull nothing else is asked; otherwise then the registry itself, or what
// the user named in its place.
func RegistryHosts(plan cluster.Plan) map[string][]byte {
	registries := plan.Registries
	files := map[string][]byte{}
	add := func(registry, server string) {
		path := filepath.Join(plan.Paths.RegistryHosts(), registry, "hosts.toml")
		files[path] = registryHosts(plan.RunID, registries.Mirror, server)
	}
	switch {
	case registries.NoPull:
		add(anyRegistry, "http://"+registries.Mirror)
		return files
	case registries.Mirror != "":
		add(anyRegistry, "")
	}
	for registry, server := range registries.Servers {
		add(registry, server)
	}
	return files
}

// anyRegistry is the directory that holds for every registry without one of
// its own.
const anyRegistry = "_default"

func registryHosts(runID, mirror, server string) []byte {
	var out strings.Builder
	fmt.Fprintf(&out, "# Made by berth for %s.\n", runID)
	if server != "" {
		fmt.Fprintf(&out, "server = %s\n", quote(server))
		if hasRoot(server) {
			out.WriteString("override_path = true\n")
		}
	}
	if mirror != "" {
		fmt.Fprintf(&out, "\n[host.%s]\n  capabilities = [\"pull\", \"resolve\"]\n", quote("http://"+mirror))
	}
	return []byte(out.String())
}

// hasRoot tells whether a server's address says where the protocol's /v2 is;
// otherwise that is put at its end. Registries with projects have it in the
// middle: https://registry/v2/project.
func hasRoot(server string) bool {
	parsed, err := url.Parse(server)
	return err == nil && strings.HasPrefix(parsed.Path+"/", "/v2/")
}
