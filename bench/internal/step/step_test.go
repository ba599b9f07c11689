package step

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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
	m := inspect()
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

// TestThrough: an invalid number of words is refused.
func TestThrough(t *testing.T) {
	for _, args := range [][]string{{"--through", "2", "--", "a", "b"}, {"--"}} {
		if _, err := run(args); err == nil || !strings.Contains(err.Error(), "no program") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// TestLinks: the settings of an interface are read, including packet loss in its alias.
func TestLinks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a network namespace of our own needs root")
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	script := `ip link add d0 mtu 1400 type veth peer name d1 && ip addr add 10.9.8.7/24 dev d0 && ip link set d0 up && ip link set d1 up &&
		ip link set d0 alias "` + record.LossAlias + `0.1%" && ip link set d1 alias "uplink 7" && ip addr add 10.9.7.7/24 dev d1`
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := links()
	for name, want := range map[string]string{"link d0 mtu": "1400", "link d0 loss": "0.1%", "link d1 mtu": "1500", "link d1 loss": "", "link d0 rx ring": ""} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q: %v", name, got[name], want, got)
		}
	}
}
