// Command berth-dns is upstream's CoreDNS as the name server of the pods on one
// node of the site network, with a plugin that knows their names. berthd starts
// it, and ends it by removing its life file.
package main

import (
	"os"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
)

// readyDescriptor is open if berthd started this program. berthd waits for a line on it.
const readyDescriptor = 3

func main() {
	// names comes before the cache, because an answer depends on the asker.
	dnsserver.Directives = []string{"bind", "errors", pluginName, "cache", "forward"}
	plugin.Register(pluginName, setup)
	caddy.RegisterEventHook(pluginName, func(event caddy.EventName, _ any) error {
		if event == caddy.InstanceStartupEvent {
			ready := os.NewFile(readyDescriptor, "ready")
			// If it was started by hand, nobody waits for this line.
			_, _ = ready.WriteString("ready\n")
			ready.Close()
		}
		return nil
	})
	coremain.Run()
}
