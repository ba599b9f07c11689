// Package dnsconf renders CoreDNS's configuration, the Corefile, from a node's
// plan. It starts nothing. The Kubernetes objects that make CoreDNS a Service
// belong to the control role.
package dnsconf

import (
	_ "embed"
	"net/netip"
	"strings"

	"berth.dev/berth/internal/base/cluster"
)

// Ports of CoreDNS on the DNS address, beside 53.
const (
	// readyPort answers GET /ready: 200 once Services and EndpointSlices are
	// known, 503 before.
	readyPort = 8181
	// metricsPort answers GET /metrics.
	metricsPort = 9153
)

// domain is the cluster domain. Nearly every Helm chart assumes this one.
const domain = "cluster.local"

//go:embed Corefile.tmpl
var corefile string

// Corefile returns the whole configuration of CoreDNS on the node of the plan.
//
// Plain replacement fills the template, which cannot fail. Paths in the plan contain no
// character that a Corefile must quote.
func Corefile(plan cluster.Plan) []byte {
	dns := plan.Addresses.DNS
	return []byte(strings.NewReplacer(
		"{ADDRESS}", dns.String(),
		"{READY}", netip.AddrPortFrom(dns, readyPort).String(),
		"{METRICS}", netip.AddrPortFrom(dns, metricsPort).String(),
		"{DOMAIN}", domain,
		"{KUBECONFIG}", plan.Paths.Kubeconfig(cluster.UserDNS),
		"{UPSTREAM}", plan.Addresses.Gateway.String(),
	).Replace(corefile))
}
