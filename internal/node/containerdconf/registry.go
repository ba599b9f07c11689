package containerdconf

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/base/cluster"
)

// RegistryHosts returns containerd's hosts.toml files by path. They configure
// the servers for the images of each registry. With NoPull the only server
// is the local mirror, for all registries. Otherwise the import of an archive
// adds the mirror for the registries of its images. If the mirror served all
// registries, its "not found" would hide why a registry did not answer.
func RegistryHosts(plan cluster.Plan) map[string][]byte {
	registries := plan.Registries
	files := map[string][]byte{}
	add := func(registry, server string) {
		path := filepath.Join(plan.Paths.RegistryHosts(), registry, "hosts.toml")
		files[path] = registryHosts(plan.RunID, server)
	}
	if registries.NoPull {
		add(anyRegistry, "http://"+registries.Mirror)
		return files
	}
	for registry, server := range registries.Servers {
		add(registry, server)
	}
	return files
}

// anyRegistry is the directory for registries that have no directory of their name.
const anyRegistry = "_default"

func registryHosts(runID, server string) []byte {
	var out strings.Builder
	fmt.Fprintf(&out, "# Made by berth for %s.\nserver = %s\n", runID, quote(server))
	if hasRoot(server) {
		out.WriteString("override_path = true\n")
	}
	return []byte(out.String())
}

// hasRoot reports whether the path of a server's address begins with /v2, the root of the
// registry protocol. Otherwise containerd appends /v2. Registries with projects have more
// after it: https://registry/v2/project.
func hasRoot(server string) bool {
	parsed, err := url.Parse(server)
	return err == nil && strings.HasPrefix(parsed.Path+"/", "/v2/")
}
