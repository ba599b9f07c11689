package slurm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// fakeTopology returns a folder like /sys/devices/system/cpu, for two sockets with two
// cores each and two threads per core. The socket varies fastest in the numbers of the
// CPUs, then the core, then the thread.
func fakeTopology(t *testing.T) string {
	t.Helper()
	sys := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(sys, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("online", "0-7")
	for cpu := range 8 {
		topology := "cpu" + strconv.Itoa(cpu) + "/topology/"
		write(topology+"core_siblings_list", []string{"0,2,4,6", "1,3,5,7"}[cpu%2])
		write(topology+"thread_siblings_list", fmt.Sprintf("%d,%d", cpu%4, cpu%4+4))
	}
	return sys
}

func TestNodeCPUs(t *testing.T) {
	sys := fakeTopology(t)
	const details = "JobId=7 NumNodes=3 Nodes=n[1-2] CPU_IDs=0-2,7 Mem=100 GRES= Nodes=n3 CPU_IDs=4 Mem=100 GRES= MinCPUsNode=1"
	for name, c := range map[string]struct{ node, details, total, want string }{
		"one of several":             {"n2", details, "8", "0,2,4,7"},
		"the last":                   {"n3", details, "8", "1"},
		"no such node":               {"n4", details, "8", "no CPU_IDs"},
		"Slurm says nothing":         {"n1", "JobId=7 NodeList=n1", "8", "no CPU_IDs"},
		"Slurm knows other CPUs":     {"n1", details, "2", "Slurm counts 2 CPUs there, the kernel 8"},
		"a CPU that is not there":    {"n1", "Nodes=n1 CPU_IDs=8", "8", "there is no CPU 8"},
		"what is not a list of CPUs": {"n1", "Nodes=n1 CPU_IDs=(null)", "8", "read the CPUs of job 7"},
	} {
		ask := func(_ context.Context, command ...string) ([]byte, error) {
			if strings.Contains(strings.Join(command, " "), "show node") {
				return []byte("NodeName=" + c.node + " CPUAlloc=1 CPUTot=" + c.total), nil
			}
			return []byte(c.details), nil
		}
		got, err := nodeCPUs(t.Context(), Job{ID: "7", NodeName: c.node}, ask, sys)
		if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && got.String() != c.want {
			t.Errorf("%s: %q, %v; want %s", name, got, err, c.want)
		}
	}
}
