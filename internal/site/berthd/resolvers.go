package berthd

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/site/siteconf"
)

// resolvers keeps the file of each pod that its tasks see as /etc/resolv.conf.
type resolvers struct {
	config siteconf.Config
	dir    string
	// address is the address of the pods' name server.
	address netip.Addr
}

func (r *resolvers) file(id string) string { return filepath.Join(r.dir, id) }

// write writes the file of a pod, if the site's network has names.
func (r *resolvers) write(a siteconf.Allocation) error {
	if r.config.DNS.Program == "" {
		return nil
	}
	search := r.config.DNS.Search
	if search == nil {
		host, err := os.ReadFile("/etc/resolv.conf")
		if err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("read the host's resolver: %w", err)
		}
		search = searchOf(string(host))
	}
	// ndots:2 makes the resolver try a name with one dot, pod0.job, in the user's domain first.
	text := fmt.Sprintf("nameserver %s\nsearch %s\noptions ndots:2\n", r.address, strings.Join(a.Domains(r.config.Cluster, search), " "))
	if err := os.WriteFile(r.file(a.ID()), []byte(text), 0o644); err != nil {
		return fmt.Errorf("write resolver of %s: %w", a.ID(), err)
	}
	return nil
}

// searchOf returns the search domains of a resolv.conf, whose last such line counts.
func searchOf(text string) []string {
	var found []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) > 1 && (fields[0] == "search" || fields[0] == "domain") {
			found = fields[1:]
		}
	}
	return found
}
