package sysinfo

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/linux"
)

// callsVariable has this program print what sysinfo(2) reports.
const callsVariable = "BERTH_TEST_SYSINFO"

func TestMain(m *testing.M) {
	if os.Getenv(callsVariable) == "" {
		os.Exit(m.Run())
	}
	var first, second unix.Sysinfo_t
	err1, err2, err3 := unix.Sysinfo(&first), unix.Sysinfo(&second), unix.Sysinfo(nil)
	fmt.Println(first.Totalram*uint64(first.Unit), second.Totalram*uint64(second.Unit), err1, err2, errors.Is(err3, unix.EFAULT))
}

func TestSysinfoReportsMemory(t *testing.T) {
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		t.Fatal(err)
	}
	memory := make(chan uint64, 3)
	memory <- 64 << 20
	memory <- 0 // the kernel's answer
	memory <- 64 << 20
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), callsVariable+"=1")
	served := make(chan error, 1)
	var out []byte
	var err error
	linux.OnNewThread(func() {
		var listener *os.File
		if listener, err = Install(); err == nil {
			go func() { served <- Serve(listener, func() uint64 { return <-memory }) }()
			out, err = cmd.CombinedOutput()
		}
	})
	if errors.Is(err, unix.EACCES) {
		t.Skip("a filter needs CAP_SYS_ADMIN, which the integration tests have")
	} else if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if want := fmt.Sprintln(64<<20, machine.Totalram*uint64(machine.Unit), nil, nil, true); string(out) != want {
		t.Errorf("sysinfo reports %q, want %q", out, want)
	}
	// Nobody has the filter any more.
	if err := <-served; err != nil {
		t.Error(err)
	}
}
