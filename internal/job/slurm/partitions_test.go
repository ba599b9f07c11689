package slurm

import (
	"context"
	"os"
	"reflect"
	"testing"
	"time"
)

// TestPartitions reads the output of sinfo 22.05 without its padding. One node is drained, and another runs
// a job. The partition without nodes is made up.
func TestPartitions(t *testing.T) {
	output, err := os.ReadFile("testdata/sinfo-22.05.txt")
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	got, err := Partitions(t.Context(), func(_ context.Context, command ...string) ([]byte, error) {
		asked++
		return output, nil
	})
	want := []Partition{
		{Name: "small", MaxTime: 26 * time.Hour, MaxNodes: 1, Nodes: 1, CPUs: 2, FreeCPUs: 1, MemoryMB: 2000, FreeMemoryMB: 1700, NodeCPUs: 2, NodeMemoryMB: 2000},
		{Name: "main", Up: true, MaxTime: -1, MaxNodes: -1, Nodes: 3, CPUs: 6, FreeCPUs: 3, MemoryMB: 6000, FreeMemoryMB: 3700, NodeCPUs: 2, NodeMemoryMB: 2000},
		{Name: "empty", Up: true, MaxTime: 30 * time.Minute, MaxNodes: -1},
	}
	if err != nil || asked != 1 || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v after %d calls", got, err, asked)
	}
	if _, err := Partitions(t.Context(), func(context.Context, ...string) ([]byte, error) { return []byte("main up\n"), nil }); err == nil {
		t.Error("accepted a line with two fields")
	}
}
