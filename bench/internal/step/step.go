// Package step is the bench's program on the measured machine. It starts the measured
// program and reports the resources that it used. It knows nothing about cases.
package step

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/tools"
)

// Mark begins the line of standard error with a step's usage.
const Mark = "berth-bench-step: "

// straggle limits how long leftover processes of a program may take to end.
const straggle = 5 * time.Second

// Run starts a program, waits for it and all its leftover processes, and returns
// its exit code. With an archive, the program is taken from the image. A command
// in through belongs to the machine and comes before the program. With noted
// set, the machine's activity while the program runs is printed on standard
// output.
func Run(archive string, through, args []string, noted bool) (int, error) {
	if archive != "" {
		root, err := tools.Unpack(archive)
		if err != nil {
			return 0, err
		}
		if args, err = tools.Command(root, args); err != nil {
			return 0, err
		}
	}
	if noted {
		self, err := os.Executable()
		if err != nil {
			return 0, fmt.Errorf("find this program: %w", err)
		}
		args = append([]string{self, windowArg}, args...)
	}
	args = append(slices.Clone(through), args...)
	path, err := exec.LookPath(args[0])
	if err != nil {
		return 0, fmt.Errorf("find program: %w", err)
	}
	// The daemons of a container engine count as well.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("become a subreaper: %w", err)
	}
	facts := record.Step{Job: os.Getenv("SLURM_JOB_ID"), LoadBefore: load()}
	if facts.Node = os.Getenv("SLURMD_NODENAME"); facts.Node == "" {
		facts.Node, _ = os.Hostname()
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	pid, err := syscall.ForkExec(path, args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", path, err)
	}
	go func() {
		for s := range signals {
			_ = syscall.Kill(pid, s.(syscall.Signal)) // it may have ended
		}
	}()
	status, err := wait(pid)
	if err != nil {
		return 0, err
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage); err != nil {
		return 0, fmt.Errorf("read the CPU time of the program: %w", err)
	}
	facts.CPUSeconds = seconds(usage.Utime) + seconds(usage.Stime)
	facts.LoadAfter = load()
	encoded, err := json.Marshal(facts)
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(os.Stderr, "\n%s%s\n", Mark, encoded)
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// wait waits for a process, and then at most straggle for orphans that became children of
// this process. It returns the status of the process.
func wait(pid int) (syscall.WaitStatus, error) {
	var result syscall.WaitStatus
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait for the program: %w", err)
		}
		if ended == pid {
			result = status
			break
		}
	}
	for deadline := time.Now().Add(straggle); time.Now().Before(deadline); {
		ended, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			break // none is left
		}
		if ended == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
	return result, nil
}

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// load returns the load averages of this machine, or "".
func load() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}
