package hostnet

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"berth.dev/berth/internal/job/slurm"
)

func TestNodesInJobsOwnNetwork(t *testing.T) {
	here := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.128.0.9")}
	asked := ""
	look := lookup(func(_ context.Context, name string) ([]netip.Addr, error) {
		asked = name
		return here[1:], nil
	})
	task := func(variables ...string) (slurm.Job, func(string) string) {
		getenv := func(name string) string {
			for _, variable := range append(variables, "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURMD_NODENAME=n2") {
				if value, ok := strings.CutPrefix(variable, name+"="); ok {
					return value
				}
			}
			return ""
		}
		job, ok := slurm.FromEnv(getenv)
		if !ok {
			t.Fatal("this is not a job")
		}
		return job, getenv
	}
	plain := []string{"SLURM_JOB_ID=17", "SLURM_JOB_NODELIST=n[1-4]", "SLURM_STEP_NODELIST=n[2,4]"}
	mixed := []string{"SLURM_JOB_ID=17", "SLURM_JOB_NODELIST=n[1-4]", "SLURM_STEP_NODELIST=n[1-4]", "SLURM_HET_SIZE=2",
		"SLURM_JOB_ID_HET_GROUP_0=17", "SLURM_JOB_NODELIST_HET_GROUP_0=n[1-3]", "SLURM_JOB_ID_HET_GROUP_1=18", "SLURM_JOB_NODELIST_HET_GROUP_1=n4"}
	for name, c := range map[string]struct {
		variables []string
		node      string
		want      string // empty for the hosts' network
	}{
		"the hosts' network":          {plain, "n2", ""},
		"an address of another job's": {append(plain, "BERTH_POD_ADDRESS=10.128.0.10"), "n2", ""},
		"no address":                  {append(plain, "BERTH_POD_ADDRESS=yes"), "n2", ""},
		"a step on some nodes":        {append(plain, "BERTH_POD_ADDRESS=10.128.0.9"), "n4", "pod3.17"},
		"a heterogeneous job":         {append(mixed, "BERTH_POD_ADDRESS=10.128.0.9"), "n3", "pod2.17"},
		"its second component":        {append(mixed, "BERTH_POD_ADDRESS=10.128.0.9"), "n4", "pod0.18"},
	} {
		t.Run(name, func(t *testing.T) {
			job, getenv := task(c.variables...)
			// The task's own node is n2 in every case.
			if own, want := NetworkOf(job, getenv, here), map[bool]string{true: "17"}[c.want != ""]; own != want {
				t.Errorf("the network is that of job %q, want %q", own, want)
			}
			network := findOwnNetwork(job, getenv, here, look)
			if c.want == "" {
				if network != nil {
					t.Fatalf("found %v", network.names)
				}
				return
			}
			if network == nil {
				t.Fatal("found none")
			}
			if addresses, err := network.addresses(t.Context(), c.node); err != nil || len(addresses) != 1 || asked != c.want {
				t.Errorf("%s: %v, %v, asked for %q, want %q", c.node, addresses, err, asked, c.want)
			}
		})
	}
	job, getenv := task(append(mixed, "SLURMD_NODENAME=n4", "BERTH_POD_ADDRESS=10.128.0.9")...)
	if own := NetworkOf(job, getenv, here); own != "18" {
		t.Errorf("the network of the second component is that of job %q", own)
	}
	job, getenv = task(append(plain, "BERTH_POD_ADDRESS=10.128.0.9")...)
	network := findOwnNetwork(job, getenv, here, func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no such host") })
	if _, err := network.addresses(t.Context(), "n4"); err == nil || !strings.Contains(err.Error(), "names need 'dns'") {
		t.Errorf("no names: %v", err)
	}
	if _, err := network.addresses(t.Context(), "n9"); err == nil || !strings.Contains(err.Error(), "has no such node") {
		t.Errorf("a node that is not the job's: %v", err)
	}
}
