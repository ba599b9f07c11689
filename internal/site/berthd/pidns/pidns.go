// Package pidns makes and ends the PID namespaces of pods. It does not know users or jobs.
package pidns

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/vxlan"
)

// Namespaces keeps the PID namespaces of pods.
type Namespaces struct {
	// dir has a file for each namespace, by ID.
	dir string
	// program is process 1 of each namespace.
	program string

	mu sync.Mutex
	// firsts holds process 1 of each pod that this daemon has started, by ID.
	firsts map[string]*os.Process
}

// New returns the namespaces with files in a directory. Process 1 of each runs the program.
func New(dir, program string) *Namespaces {
	return &Namespaces{dir: dir, program: program, firsts: map[string]*os.Process{}}
}

// File returns the file of a pod's namespace.
func (p *Namespaces) File(id string) string { return filepath.Join(p.dir, id) }

// Start makes the PID namespace of a job's pod: a process 1 that lives until the job
// ends, independent of the daemon, and a file through which others enter.
func (p *Namespaces) Start(id string) error {
	path := p.File(id)
	if vxlan.IsNamespace(path) {
		return nil
	}
	fail := func(err error) error { return fmt.Errorf("make PID namespace of %s: %w", id, err) }
	command := exec.Command(p.program, "wait")
	begin, err := command.StdinPipe()
	if err != nil {
		return fail(err)
	}
	defer begin.Close()
	// Setsid keeps signals of the daemon's terminal away from the process.
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Setsid: true}
	if err := command.Start(); err != nil {
		return fail(fmt.Errorf("%w: correct 'pod' in the configuration", err))
	}
	// Reap the process. After a restart of the daemon, init reaps it.
	go func() { _ = command.Wait() }()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fail(errors.Join(err, command.Process.Kill()))
	}
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/pid", command.Process.Pid), path, "", unix.MS_BIND, ""); err != nil {
		return fail(errors.Join(err, command.Process.Kill(), os.Remove(path)))
	}
	// Ignore an error: the process has ended, so nobody can enter the pod, or its version does
	// not wait for this byte.
	_, _ = begin.Write([]byte{0})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.firsts[id] = command.Process
	return nil
}

// End kills all processes of a job's pod. If this daemon started process 1, it need not
// search for it among all processes of the node.
func (p *Namespaces) End(id string) error {
	p.mu.Lock()
	first := p.firsts[id]
	delete(p.firsts, id)
	p.mu.Unlock()
	if first == nil {
		return End(p.File(id))
	}
	if err := first.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill the processes of a pod (process 1 is %d): %w", first.Pid, err)
	}
	return vxlan.RemoveNamespace(p.File(id))
}

// End kills all processes in a PID namespace, by its process 1, and
// removes the file. It may be called twice.
func End(path string) error {
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
		// Use a descriptor: the number may belong to another process by now.
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

// firstProcess searches all processes for process 1 of a PID namespace, and returns 0 if there
// is none. No file holds the number, because after a crash it could belong to another process.
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

// isFirst reports whether a process is number 1 in its innermost PID namespace, whose number is
// the last one of the line NSpid.
func isFirst(status []byte) bool {
	for line := range bytes.Lines(status) {
		if numbers, found := bytes.CutPrefix(line, []byte("NSpid:")); found {
			fields := bytes.Fields(numbers)
			return len(fields) > 0 && string(fields[len(fields)-1]) == "1"
		}
	}
	return false
}
