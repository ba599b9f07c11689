// Package window measures the activity of a machine's processors while a program
// runs. The program is started by a wrapper that reads the kernel's counters
// right before and right after. Evaluation of the counters belongs elsewhere.
package window

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/bench/internal/record"
)

// Mark begins the lines of this package in a program's output.
const Mark = "--- berth-bench "

// Functions defines the function "machine WORD" for a shell that has busybox. The function
// prints a line of counters without starting a process, whose CPU time would count.
const Functions = `processors=$(busybox grep -c '^cpu[0-9]' /proc/stat)
machine() { read -r up _ </proc/uptime; read -r counters </proc/stat; echo "` + Mark + `$1 $processors $up $counters"; }
`

// Shell returns the command that runs a program in a container between two lines of
// counters.
func Shell(args []string) []string {
	return append([]string{"sh", "-c", Functions + `machine before; "$@"; code=$?; echo; machine after; exit $code`, "sh"}, args...)
}

// Run runs a program between two lines of counters on this machine, without a shell. It
// returns the program's exit code.
func Run(args []string) (int, error) {
	if len(args) == 0 {
		return 0, errors.New("there is no program")
	}
	command := exec.Command(args[0], args[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	before, err := counters("before")
	if err != nil {
		return 0, err
	}
	fmt.Println(before)
	if err := command.Start(); err != nil {
		return 0, fmt.Errorf("start the program: %w", err)
	}
	go func() {
		for s := range signals {
			_ = command.Process.Signal(s) // it may have ended
		}
	}()
	err = command.Wait()
	after, wrong := counters("after")
	if wrong != nil {
		return 0, wrong
	}
	fmt.Printf("\n%s\n", after)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, fmt.Errorf("wait for the program: %w", err)
	}
	if status := command.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return command.ProcessState.ExitCode(), nil
}

// counters returns the line that the shell function "machine" would print.
func counters(word string) (string, error) {
	up, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return "", fmt.Errorf("read the time since the start: %w", err)
	}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return "", fmt.Errorf("read the counters of the processors: %w", err)
	}
	lines := strings.Split(string(stat), "\n")
	processors := 0
	for _, line := range lines[1:] {
		if strings.HasPrefix(line, "cpu") {
			processors++
		}
	}
	since, _, _ := strings.Cut(string(up), " ")
	return fmt.Sprintf("%s%s %d %s %s", Mark, word, processors, since, lines[0]), nil
}

// Cut removes the lines of counters from a program's output, and returns the window between
// them. The window is nil if there are no such lines.
func Cut(text string) (own string, w *record.Window, err error) {
	head, rest, found := strings.Cut(text, Mark+"before ")
	if !found {
		return text, nil, nil
	}
	before, rest, _ := strings.Cut(rest, "\n")
	inside, after, found := strings.Cut(rest, "\n"+Mark+"after ")
	if !found {
		return head + rest, nil, errors.New("the program's end is not in its output")
	}
	after, tail, _ := strings.Cut(after, "\n")
	from, err := read(before)
	if err != nil {
		return head + inside + tail, nil, err
	}
	to, err := read(after)
	if err != nil {
		return head + inside + tail, nil, err
	}
	seconds := to.up - from.up
	// The kernel measures idle time exactly, and samples other time. The time of
	// waits for disks may run backwards (proc(5)).
	busy := min(max(0, seconds*from.processors-(to.idle-from.idle)), seconds*from.processors)
	return head + inside + tail, &record.Window{Seconds: seconds, Processors: int(from.processors), Busy: busy}, nil
}

type reading struct{ processors, up, idle float64 }

// Hertz is USER_HZ, the unit of processor times in /proc. It is 100 on all machines that
// berth supports.
const Hertz = 100

// read parses the counters of a line: "2 1234.56 cpu 1 2 3 4 ...". The fourth,
// fifth and eighth number are idle time: idle, waiting for disks, and given to
// other virtual machines (proc(5)).
func read(line string) (r reading, err error) {
	fields := strings.Fields(line)
	if len(fields) < 11 {
		return r, fmt.Errorf("read counters of the processors: %q", line)
	}
	for at, to := range map[int]*float64{0: &r.processors, 1: &r.up} {
		if *to, err = strconv.ParseFloat(fields[at], 64); err != nil {
			return r, fmt.Errorf("read counters of the processors: %w", err)
		}
	}
	for _, at := range []int{6, 7, 10} {
		ticks, err := strconv.ParseFloat(fields[at], 64)
		if err != nil {
			return r, fmt.Errorf("read counters of the processors: %w", err)
		}
		r.idle += ticks / Hertz
	}
	return r, nil
}
