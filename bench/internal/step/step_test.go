package step

import (
	"strings"
	"testing"

	"berth.dev/berth/bench/internal/record"
)

func TestListens(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue
   0: 0100007F:138B 00000000:0000 0A 00000000:00000000
   1: 0100007F:138C 0100007F:9999 01 00000000:00000000
`
	if !has(table, 5003, listen) || has(table, 5004, listen) || has(table, 5005, listen) || has("", 5003, listen) || has(table, 5003, unconnected) {
		t.Error("it takes other ports, or other states, for one that listens")
	}
}

func TestAwaitListening(t *testing.T) {
	if said, ok := AwaitListening(strings.NewReader("a\n" + listening + "\nb\n")); !ok || said != "a\n" {
		t.Errorf("got %q, %t", said, ok)
	}
	if said, ok := AwaitListening(strings.NewReader("no such file\n" + Mark + "{}\n")); ok || said != "no such file\n" {
		t.Errorf("of a step that ended: %q, %t", said, ok)
	}
}

func TestInspect(t *testing.T) {
	m := Inspect()
	if m.Boot == "" {
		t.Error("it does not tell which kernel it is")
	}
	for name, value := range m.Settings {
		if strings.HasPrefix(name, record.LinkSetting) && value == "" {
			t.Errorf("%s is empty", name)
		}
	}
	if m.Name == "" || m.Kernel == "" || m.CPUs < 1 || m.Memory < 1<<20 || m.Load == "" {
		t.Errorf("got %+v", m)
	}
}

// TestThrough: a number of words that cannot be is refused, and not taken apart.
func TestThrough(t *testing.T) {
	for _, args := range [][]string{{"--through", "2", "--", "a", "b"}, {"--"}} {
		if _, err := run(args); err == nil || !strings.Contains(err.Error(), "no program") {
			t.Errorf("%q: %v", args, err)
		}
	}
}
