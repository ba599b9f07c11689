package cluster

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

func TestNodeName(t *testing.T) {
	for host, want := range map[string]string{
		"n1": "n1", "GPU_07": "gpu-07", "node.site.org": "node.site.org", "_": "node",
		strings.Repeat("a", 62) + "-b": strings.Repeat("a", 62),
	} {
		if got := nodeName(host); got != want {
			t.Errorf("%q becomes %q, want %q", host, got, want)
		}
	}
}

func TestNodesGetTheirOwnNames(t *testing.T) {
	long := strings.Repeat("x", 70)
	for _, test := range []struct{ hosts, want []string }{
		{[]string{"n1", "n2"}, []string{"n1", "n2"}},
		{[]string{"GPU_1", "gpu-1"}, []string{"gpu-1-2", "gpu-1"}},
		{[]string{"Gpu_1", "gPU_1", "gpu-1-2"}, []string{"gpu-1", "gpu-1-3", "gpu-1-2"}},
		{[]string{"_", "__"}, []string{"node", "node-2"}},
		{[]string{long + "a", long + "b"}, []string{long[:63], long[:61] + "-2"}},
	} {
		var offers []Offer
		for _, host := range test.hosts {
			offers = append(offers, Offer{Host: host})
		}
		if got := nodeNames(offers); !slices.Equal(got, test.want) {
			t.Errorf("%q become %q, want %q", test.hosts, got, test.want)
		}
	}
}

func FuzzNodeNames(f *testing.F) {
	f.Add("n1", "N1", "n-1-2")
	f.Add("", "_", "node")
	valid := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	f.Fuzz(func(t *testing.T, a, b, c string) {
		fuzzbound.Watch(t)
		if a == b || b == c || a == c {
			return // Slurm has no two nodes of a name
		}
		names := nodeNames([]Offer{{Host: a}, {Host: b}, {Host: c}})
		for i, name := range names {
			if len(name) > LongestName || !valid.MatchString(name) || slices.Contains(names[:i], name) {
				t.Errorf("%q become %q", []string{a, b, c}, names)
			}
		}
	})
}
