package launch

import (
	"testing"
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
		{[]string{"/opt/bin/berth", "balancer-role", "/run/berth/plan.json"}, "balancer", false},
		{[]string{"/opt/libexec/berth/berth-sandbox", "log-role", "a", "b", "c"}, "logs", false},
		{[]string{"berth", "slurm-jobs-role"}, "slurm-jobs", false},
		{[]string{"berth", "elastic-role"}, "elastic", false},
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
