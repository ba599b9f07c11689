package launch

import (
	"testing"

	"berth.dev/berth/internal/base/metrics"
	"berth.dev/berth/internal/network/egress"
)

func TestRoleOf(t *testing.T) {
	for _, test := range []struct {
		arguments []string
		name      string
		further   bool
	}{
		{[]string{"berth", "sandbox-janitor"}, "sandbox", true},
		{[]string{"/proc/self/exe", "sandbox-init"}, "", false},
		{[]string{"berth", "net-role"}, "net", false},
		{[]string{"berth", "run", "-f", "x.yaml"}, "", false},
		{[]string{"/opt/libexec/berth/berth-kube", "control", "--plan", "x"}, "control", false},
		{[]string{"/opt/libexec/berth/containerd-shim-berth-v2", "-namespace", "k8s.io"}, "shims", false},
		{[]string{"/opt/libexec/berth/coredns"}, "dns", false},
		{[]string{"sleep", "1"}, "", false},
		{nil, "", false},
	} {
		if name, further := roleOf(test.arguments); name != test.name || further != test.further {
			t.Errorf("%q is %q, further %t; want %q, %t", test.arguments, name, further, test.name, test.further)
		}
	}
}

// TestCountsAreKnown checks that each counter has a description. Others would not
// be shown.
func TestCountsAreKnown(t *testing.T) {
	known := map[string]bool{}
	for _, family := range metrics.Families() {
		known[family.Name] = true
	}
	for name := range netCounts(&egress.Counters{}, nil, nil) {
		if family := metrics.FamilyOf(name); !known[family] {
			t.Errorf("%s is described nowhere", family)
		}
	}
}
