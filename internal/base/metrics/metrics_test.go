package metrics

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func TestPage(t *testing.T) {
	page := NewPage(`odd "name"`)
	page.Add("berth_node_cpus", 4)
	page.Add("berth_start_seconds", 0.25, "phase", "sandbox")
	page.Add("berth_start_seconds", 0.125, "phase", "host")
	page.Add("nobody_knows", 1)
	page.AddCounts(map[string]uint64{
		"berth_overlay_sent_bytes_total":                                  4096,
		Count("berth_overlay_dropped_packets_total", "reason", "foreign"): 3,
	})
	var text strings.Builder
	if _, err := page.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	const want = `# HELP berth_start_seconds time from the start of berth on this node until a phase of the start was done
# TYPE berth_start_seconds gauge
berth_start_seconds{node="odd \"name\"",phase="host"} 0.125
berth_start_seconds{node="odd \"name\"",phase="sandbox"} 0.25
# HELP berth_node_cpus processors that the node may use
# TYPE berth_node_cpus gauge
berth_node_cpus{node="odd \"name\""} 4
# HELP berth_overlay_sent_bytes_total bytes in them
# TYPE berth_overlay_sent_bytes_total counter
berth_overlay_sent_bytes_total{node="odd \"name\""} 4096
# HELP berth_overlay_dropped_packets_total packets and datagrams between nodes that were dropped, by reason
# TYPE berth_overlay_dropped_packets_total counter
berth_overlay_dropped_packets_total{node="odd \"name\"",reason="foreign"} 3
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
	parse(t, text.String())
}

// parse holds a page against Prometheus' own reader.
func parse(t *testing.T, page string) {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	if _, err := parser.TextToMetricFamilies(strings.NewReader(page)); err != nil {
		t.Errorf("Prometheus does not read it: %v\n%s", err, page)
	}
}

func TestMerge(t *testing.T) {
	page := func(node string) string {
		p := NewPage(node)
		p.Add("berth_node_cpus", 2)
		p.Add("berth_role_ready", 1, "role", "node")
		var text strings.Builder
		if _, err := p.WriteTo(&text); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	kubelet := "# HELP node_cpu_usage_seconds_total [STABLE] Time\n# TYPE node_cpu_usage_seconds_total counter\n" +
		"node_cpu_usage_seconds_total 4.36 1795266027315\nresource_scrape_error 0\n" +
		"container_start_time_seconds{container=\"a\"} 1.5"
	var merged strings.Builder
	if err := Merge(&merged, page("n1")+Label(Only(kubelet, "node_", "container_"), "node", "n1"), page("n2"), ""); err != nil {
		t.Fatal(err)
	}
	const want = `# HELP berth_node_cpus processors that the node may use
# TYPE berth_node_cpus gauge
berth_node_cpus{node="n1"} 2
berth_node_cpus{node="n2"} 2
# HELP berth_role_ready 1 where a part of berth has reported that it does its work
# TYPE berth_role_ready gauge
berth_role_ready{node="n1",role="node"} 1
berth_role_ready{node="n2",role="node"} 1
# HELP node_cpu_usage_seconds_total [STABLE] Time
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total{node="n1"} 4.36 1795266027315
container_start_time_seconds{node="n1",container="a"} 1.5
`
	if merged.String() != want {
		t.Errorf("got\n%s\nwant\n%s", merged.String(), want)
	}
	parse(t, merged.String())
}

// TestDocumentation keeps the table in docs/metrics.md the same as Families.
func TestByLabel(t *testing.T) {
	page := NewPage("a")
	page.AddCounts(map[string]uint64{Count(FastPath, "outcome", "connected"): 3, Count(FastPath, "outcome", "overlay: not TCP"): 2})
	page.Add("berth_node_cpus", 7)
	var text strings.Builder
	if _, err := page.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	got := ByLabel(text.String()+text.String(), FastPath, "outcome")
	if want := map[string]float64{"connected": 6, "overlay: not TCP": 4}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestDocumentation(t *testing.T) {
	content, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	for _, f := range Families() {
		fmt.Fprintf(&table, "| `%s` | %s |\n", f.Name, f.Help)
	}
	if !strings.Contains(string(content), "| --- | --- |\n"+table.String()) {
		t.Errorf("docs/metrics.md has another table; this is the one:\n%s", table.String())
	}
}
