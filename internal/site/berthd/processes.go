package berthd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/vxlan"
)

// startProcesses makes the PID namespace of a job's pod: a process 1 that lives
// until the job ends, whatever becomes of the daemon, and a file to enter by.
func (d *Daemon) startProcesses(id string) error {
	path := d.processes(id)
	if vxlan.IsNamespace(path) {
		return nil
	}
	fail := func(err error) error { return fmt.Errorf("make PID namespace of %s: %w", id, err) }
	command := exec.Command(d.config.Pod, "wait")
	begin, err := command.StdinPipe()
	if err != nil {
		return fail(err)
	}
	defer begin.Close()
	// A session of its own: signals to the daemon's terminal are not its.
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Setsid: true}
	if err := command.Start(); err != nil {
		return fail(fmt.Errorf("%w: correct 'pod' in the configuration", err))
	}
	// Its end is Wait's alone to see, unless a later daemon is to see it.
	go func() { _ = command.Wait() }()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fail(errors.Join(err, command.Process.Kill()))
	}
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/pid", command.Process.Pid), path, "", unix.MS_BIND, ""); err != nil {
		return fail(errors.Join(err, command.Process.Kill(), os.Remove(path)))
	}
	// One that has ended, or of a version that does not wait, is of no interest: whoever enters the pod sees.
	_, _ = begin.Write([]byte{0})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.firsts[id] = command.Process
	return nil
}

// endPod kills all processes of a job's pod. Process 1 is known if this daemon has
// started it, and need not be looked for among all of the node.
func (d *Daemon) endPod(id string) error {
	d.mu.Lock()
	first := d.firsts[id]
	delete(d.firsts, id)
	d.mu.Unlock()
	if first == nil {
		return endProcesses(d.processes(id))
	}
	if err := first.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill the processes of a pod (process 1 is %d): %w", first.Pid, err)
	}
	return vxlan.RemoveNamespace(d.processes(id))
}

// endProcesses kills all processes in a PID namespace, by its process 1, and
// removes the file. It may be called twice.
func endProcesses(path string) error {
	if !vxlan.IsNamespace(path) {
		return vxlan.RemoveNamespace(path)
	}
	var namespace unix.Stat_t
	if err := unix.Stat(path, &namespace); err != nil {
		return fmt.Errorf("look at PID namespace: %w", err)
	}
	init, err := firstProcess(namespace)
	if err != nil {
		return err
	}
	if init != 0 {
		// By descriptor: between finding and killing it, its number may be another's.
		fd, err := unix.PidfdOpen(init, 0)
		if err == nil {
			defer unix.Close(fd)
			if isFirstOf(namespace, init) {
				err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			}
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill the processes of a pod (process 1 is %d): %w", init, err)
		}
	}
	return vxlan.RemoveNamespace(path)
}

// firstProcess looks for process 1 of a PID namespace among all processes, and
// returns 0 if there is none. No number is kept in a file: after a crash it
// would be somebody else's.
func firstProcess(namespace unix.Stat_t) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err == nil && isFirstOf(namespace, pid) {
			return pid, nil
		}
	}
	return 0, nil
}

func isFirstOf(namespace unix.Stat_t, pid int) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	var its unix.Stat_t
	if unix.Stat(filepath.Join(dir, "ns/pid"), &its) != nil || its.Ino != namespace.Ino || its.Dev != namespace.Dev {
		return false
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	return err == nil && isFirst(status)
}

// isFirst: the last number of the line NSpid is that in the innermost namespace.
func isFirst(status []byte) bool {
	for line := range bytes.Lines(status) {
		if numbers, found := bytes.CutPrefix(line, []byte("NSpid:")); found {
			fields := bytes.Fields(numbers)
			return len(fields) > 0 && string(fields[len(fields)-1]) == "1"
		}
	}
	return false
}
