package campaign

import (
	"strings"
	"testing"

	"berth.dev/berth/bench/internal/record"
)

// TestAnotherMachine: a file has records of one kind of host.
func TestAnotherMachine(t *testing.T) {
	machine := func(name, cpu string) []record.Machine {
		return []record.Machine{{Name: name, CPU: cpu, CPUs: 2, Memory: 8e9, Kernel: "6.1"}}
	}
	before := []record.Line{{Session: &record.Session{Nodes: machine("n1", "A")}}, {Trial: &record.Trial{}}}
	if err := sameMachines(machine("n2", "A"), before); err != nil {
		t.Errorf("another host of the same kind: %v", err)
	}
	if err := sameMachines(machine("n1", "B"), nil); err != nil {
		t.Errorf("a new file: %v", err)
	}
	const want = "the file has records of other hosts (2 × A, 8.0 GB, 6.1), and these are 2 × B, 8.0 GB, 6.1: ask for such hosts, or give another file with --out"
	if err := sameMachines(machine("n1", "B"), before); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
}
