package record

import "testing"

// TestSameMachines: hosts of one kind are the same, whatever their names, and even if
// firmware reserves slightly different amounts of memory.
func TestSameMachines(t *testing.T) {
	one := Machine{Name: "n1", CPU: "A", CPUs: 2, Memory: 8e9, Kernel: "6.1", Boot: "x"}
	change := func(by func(*Machine)) Machine {
		other := one
		by(&other)
		return other
	}
	same := change(func(m *Machine) { m.Name, m.Boot, m.Memory = "n2", "y", 8.1e9 })
	if !SameMachines([]Machine{one}, []Machine{same, one}) || !SameMachines(nil, nil) {
		t.Error("two of one kind are not the same")
	}
	for name, other := range map[string]Machine{
		"processor":  change(func(m *Machine) { m.CPU = "B" }),
		"processors": change(func(m *Machine) { m.CPUs = 4 }),
		"memory":     change(func(m *Machine) { m.Memory = 16e9 }),
		"kernel":     change(func(m *Machine) { m.Kernel = "6.2" }),
	} {
		if SameMachines([]Machine{one}, []Machine{one, other}) || SameMachines([]Machine{other, one}, []Machine{one}) {
			t.Errorf("another %s is the same", name)
		}
		if got := Kinds([]Machine{one, same, other}); got == Kinds([]Machine{one}) {
			t.Errorf("another %s: kinds are %s", name, got)
		}
	}
}
