package linux

import (
	"os"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

func TestParseStat(t *testing.T) {
	const text = "42 (a (very) odd) name) S 7 1 1 0 -1 4194560 10 20 1 2 100 50 30 20 20 0 3 0 777 1000000 256 18446744073709551615 0 0\n"
	got, err := ParseStat([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := Stat{
		PID: 42, Parent: 7, State: 'S', Threads: 3, Start: 777,
		User: time.Second, System: 500 * time.Millisecond, ChildUser: 300 * time.Millisecond, ChildSystem: 200 * time.Millisecond,
		MinorFaults: 30, MajorFaults: 3, Resident: 256 * uint64(os.Getpagesize()),
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got.CPU() != 2*time.Second || got.Ended() {
		t.Errorf("CPU time %v, ended: %v", got.CPU(), got.Ended())
	}
}

func TestParseStatRefusesOtherText(t *testing.T) {
	for _, text := range []string{
		"", "42", "42 (x) S 1", ")42(", ")(", "(x) S " + strings.Repeat("1 ", 30),
		"x (x) " + strings.Repeat("1 ", 30), "42 (x) S " + strings.Repeat("y ", 30), "42 (x) S" + strings.Repeat(" 1", 20),
	} {
		if s, err := ParseStat([]byte(text)); err == nil {
			t.Errorf("%q: %+v", text, s)
		}
	}
}

func TestReadStat(t *testing.T) {
	s, err := ReadStat("/proc", os.Getpid())
	if err != nil || s.PID != os.Getpid() || s.Parent != os.Getppid() || s.Resident == 0 || s.Threads == 0 {
		t.Errorf("this process is %+v (error %v)", s, err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (a) S 0 1 1 0 -1 4194560 10 20 1 2 100 50 30 20 20 0 1 0 777 1000000 5 1 0 0"))
	f.Add([]byte("10 (a (b) c) S 1 1 1 0 -1 0 0 0 0 0 5 0 0 0 20 0 1 0 70 9999 3 0 0 0\n"))
	f.Add([]byte("1 (a) b) S"))
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzbound.Watch(t)
		_, _ = ParseStat(text)
	})
}
