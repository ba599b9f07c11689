package pinning

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"
)

func testLedger(t *testing.T, dead ...int) *Ledger {
	t.Helper()
	return NewLedger(filepath.Join(t.TempDir(), "cpus"), 1, 1, func(pid int, _ uint64) bool {
		for _, d := range dead {
			if pid == d {
				return false
			}
		}
		return true
	})
}

func mustClaim(t *testing.T, l *Ledger, container string, milli int64, all cpuset.CPUSet) cpuset.CPUSet {
	t.Helper()
	cpus, err := l.Claim(container, milli, all)
	if err != nil {
		t.Fatal(err)
	}
	return cpus
}

func TestContainersSpreadOverTheCPUs(t *testing.T) {
	l, all := testLedger(t), cpuset.New(2, 3, 6, 7)
	a, b := mustClaim(t, l, "a", 1500, all), mustClaim(t, l, "b", 2000, all)
	if a.Size() != 2 || b.Size() != 2 || !a.Union(b).Equals(all) {
		t.Errorf("1.5 CPUs got %s, 2 CPUs %s of %s", a, b, all)
	}
	// The two CPUs of a are less used than the two of b.
	if c := mustClaim(t, l, "c", 500, all); c.Size() != 1 || !c.IsSubsetOf(a) {
		t.Errorf("half a CPU got %s, want one of %s", c, a)
	}
	if err := l.Release("b"); err != nil {
		t.Fatal(err)
	}
	if d := mustClaim(t, l, "d", 2000, all); !d.Equals(b) {
		t.Errorf("2 CPUs got %s, want what was released, %s", d, b)
	}
	for _, milli := range []int64{0, 3001, 9000} {
		if got := mustClaim(t, l, "all", milli, all); !got.Equals(all) {
			t.Errorf("limit %d got %s", milli, got)
		}
	}
}

func TestNewLimitKeepsFittingLayers(t *testing.T) {
	l, all := testLedger(t), cpuset.New(0, 1, 2, 3)
	one := mustClaim(t, l, "a", 1000, all)
	two := mustClaim(t, l, "a", 2000, all)
	if !one.IsSubsetOf(two) || two.Size() != 2 {
		t.Errorf("%s became %s", one, two)
	}
	if again := mustClaim(t, l, "a", 1000, all); !again.IsSubsetOf(two) {
		t.Errorf("%s became %s", two, again)
	}
}

// Claims of killed shims and half-written lines do not count.
func TestClaimsOfDeadProcesses(t *testing.T) {
	l, all := testLedger(t, 99), cpuset.New(0, 1)
	const text = `{"Container":"x","Milli":1000,"CPUs":"0","Owner":{"PID":99,"Start":5}}
{"Container":"y","Milli":100,"CPUs":"1","Owner":{"PID":98,"Start":5}}
{"Container":"z","Milli":1000,"CP`
	if err := os.WriteFile(l.path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := mustClaim(t, l, "a", 1000, all); !got.Equals(cpuset.New(0)) {
		t.Errorf("got CPU %s, want the one of a shim that has ended", got)
	}
}

// A stopped shim that holds the lock does not stop the others.
func TestLockedLedger(t *testing.T) {
	l := testLedger(t)
	file, err := os.Create(l.path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Claim("a", 1000, cpuset.New(0, 1)); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("claim under another's lock: %v", err)
	}
}

func TestBind(t *testing.T) {
	own, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	last := cpuset.New(own.List()[own.Size()-1])
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := Bind(cmd.Process.Pid, last); err != nil {
		t.Fatal(err)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(cmd.Process.Pid, &set); err != nil {
		t.Fatal(err)
	}
	if set.Count() != 1 || !set.IsSet(last.List()[0]) {
		t.Errorf("bound to %v, want %s", set, last)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := Bind(cmd.Process.Pid, last); err != nil {
		t.Errorf("bind a process that has ended: %v", err)
	}
	if after, err := Own(); err != nil || !after.Equals(own) {
		t.Errorf("own CPUs %s, %v; want %s", after, err, own)
	}
}
