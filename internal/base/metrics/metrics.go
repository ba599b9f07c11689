// Package metrics defines the series that a node exports in the format of
// Prometheus, with their meaning and unit, and merges the pages of several
// nodes. It does not collect the numbers. Kubernetes' components have their own
// metrics.
package metrics

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Port is the port where each node serves its page, as /metrics, at its address
// inside the cluster.
const Port = 10247

// Socket is the name of the socket in a run's directory on disk that serves the page on the
// node itself.
const Socket = "metrics.sock"

// FastPath is the family that counts connections of pods by their outcome.
const FastPath = "berth_fastpath_total"

// Info is the family that names the running version.
const Info = "berth_info"

// A Kind is a Prometheus type.
type Kind string

// Counter is the type of a value that never falls while its process lives. Gauge is the type
// of a current value.
const (
	Counter Kind = "counter"
	Gauge   Kind = "gauge"
)

// Family is the name of a metric, with its type and help text.
type Family struct {
	Name string
	Kind Kind
	Help string
}

// Families returns berth's families in the order of the page.
func Families() []Family {
	return []Family{
		{Info, Gauge, "1; the labels have the versions of berth and Kubernetes, the run, and how images are kept"},
		{"berth_start_seconds", Gauge, "time from the start of berth on this node until a phase of the start was done"},
		{"berth_job_left_seconds", Gauge, "time until Slurm ends the job; absent where nothing limits it"},
		{"berth_node_cpus", Gauge, "processors that the node may use"},
		{"berth_node_memory_bytes", Gauge, "memory that the node may use, as Slurm or a cgroup limits it"},
		{"berth_node_memory_used_bytes", Gauge, "memory that counts against this limit, page cache included; absent where the kernel does not count"},
		{"berth_node_reserved_memory_bytes", Gauge, "part of the memory that is kept from pods, for berth itself"},
		{"berth_image_received_bytes", Gauge, "what has come of those parts of images that the node is just receiving"},
		{"berth_image_expected_bytes", Gauge, "size of these parts"},
		{"berth_image_taken_bytes_total", Counter, "bytes of layers that the node took from other nodes rather than from a registry"},
		{"berth_image_given_bytes_total", Counter, "bytes of layers that it gave to them"},
		{"berth_role_memory_bytes", Gauge, "memory of a process of berth: its own pages, and its share of shared pages"},
		{"berth_role_cpu_seconds_total", Counter, "processor time that a part of berth has used"},
		{"berth_role_ready", Gauge, "1 where a part of berth has reported that it does its work"},
		{"berth_role_restarts_total", Counter, "how often a part of berth died and was started again"},
		{"berth_overlay_sent_packets_total", Counter, "packets of pods sent to other nodes, large ones before they are cut"},
		{"berth_overlay_sent_bytes_total", Counter, "bytes in them"},
		{"berth_overlay_received_packets_total", Counter, "packets for pods received from other nodes, joined ones after that"},
		{"berth_overlay_received_bytes_total", Counter, "bytes in them"},
		{"berth_overlay_streamed_packets_total", Counter, "packets, among those sent, that went over TCP"},
		{"berth_overlay_pieced_packets_total", Counter, "packets, among those sent, that went as fragments because the path is narrow"},
		{"berth_overlay_uncut_total", Counter, "times that the kernel did not cut a packet, so that each datagram was sent by itself"},
		{"berth_overlay_dropped_packets_total", Counter, "packets and datagrams between nodes that were dropped, by reason"},
		{"berth_egress_connections_total", Counter, "connections (TCP) and flows (UDP, ping, DNS) from pods to the outside"},
		{"berth_egress_connections", Gauge, "the open ones of these connections"},
		{"berth_egress_to_pods_bytes_total", Counter, "payload from the outside to pods"},
		{"berth_egress_from_pods_bytes_total", Counter, "payload from pods to the outside"},
		{"berth_egress_refused_total", Counter, "flows to an address that pods may not reach"},
		{"berth_egress_failed_total", Counter, "connections that found nobody, or nobody willing, at the far end"},
		{"berth_egress_dropped_packets_total", Counter, "packets of pods that were malformed, multicast, or found a full buffer"},
		{"berth_egress_overflowed_total", Counter, "flows that were refused or ended because there were too many, and SYNs that were ignored"},
		{FastPath, Counter, "connections of pods that were looked at for the host's network, by what became of them"},
	}
}

// Page holds one node's samples.
type Page struct {
	node    string
	samples map[string][]string // lines by name
}

// NewPage begins the page of a node.
func NewPage(node string) *Page { return &Page{node: node, samples: map[string][]string{}} }

// Add adds a value of the family name. labels holds alternating names and values of
// labels.
func (p *Page) Add(name string, value float64, labels ...string) {
	var text strings.Builder
	fmt.Fprintf(&text, "%s{node=%s", name, quote(p.node))
	for i := 0; i+1 < len(labels); i += 2 {
		fmt.Fprintf(&text, ",%s=%s", labels[i], quote(labels[i+1]))
	}
	fmt.Fprintf(&text, "} %s\n", strconv.FormatFloat(value, 'f', -1, 64))
	p.samples[name] = append(p.samples[name], text.String())
}

// AddCounts adds the counters of another process, whose keys Count has made.
func (p *Page) AddCounts(counts map[string]uint64) {
	for key, n := range counts {
		name, rest, labelled := strings.Cut(key, "|")
		label, value, _ := strings.Cut(rest, "=")
		if labelled {
			p.Add(name, float64(n), label, value)
		} else {
			p.Add(name, float64(n))
		}
	}
}

// Count returns the key of a value for AddCounts: a name with at most one label.
func Count(name, label, value string) string { return name + "|" + label + "=" + value }

// FamilyOf returns the name in a key.
func FamilyOf(key string) string {
	name, _, _ := strings.Cut(key, "|")
	return name
}

// quote writes a label's value. The format knows three escapes.
func quote(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value) + `"`
}

// WriteTo writes the page. It omits values with a name that Families does not contain.
func (p *Page) WriteTo(w io.Writer) (int64, error) {
	var text strings.Builder
	for _, f := range Families() {
		lines := p.samples[f.Name]
		if len(lines) == 0 {
			continue
		}
		slices.Sort(lines)
		fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s %s\n%s", f.Name, f.Help, f.Name, f.Kind, strings.Join(lines, ""))
	}
	n, err := io.WriteString(w, text.String())
	return int64(n), err
}

// Path returns the API server's path to a node's page.
func Path(node string) string {
	return fmt.Sprintf("/api/v1/nodes/http:%s:%d/proxy/metrics", node, Port)
}
