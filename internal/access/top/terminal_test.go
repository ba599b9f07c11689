package top

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTerminalIsNotPrompted starts this test, which links Bubbletea, in a
// new terminal.
func TestTerminalIsNotPrompted(t *testing.T) {
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	program := exec.Command(os.Args[0], "-test.run=^$")
	program.Env = append(os.Environ(), "TERM=xterm-256color", "CI=")
	program.Stdin, program.Stdout, program.Stderr = terminal, terminal, terminal
	program.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = program.Start()
	terminal.Close()
	if err != nil {
		t.Fatal(err)
	}
	said, _ := io.ReadAll(keyboard) // ends in EIO when nobody has the terminal any more
	if err := program.Wait(); err != nil {
		t.Errorf("%v: %s", err, said)
	}
	if !strings.Contains(string(said), "PASS") || strings.Contains(string(said), "\x1b") {
		t.Errorf("the terminal shows %q", said)
	}
}
