package sandbox

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// Init runs PID 1 of the sandbox, and returns its exit status. When it returns, the kernel ends
// everything else in the namespaces.
func Init() int {
	OutliveSignals()
	// The mounted /proc still belongs to the supervisor's PID namespace.
	self, _ := os.Readlink("/proc/self")
	outside, _ := strconv.Atoi(self)
	for _, fd := range []int{configFD, controlFD} {
		unix.CloseOnExec(fd)
	}
	controlFile := os.NewFile(controlFD, "control")
	control, err := linux.PacketConn(controlFile)
	controlFile.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
		return 1
	}
	configFile := os.NewFile(configFD, "config")
	config, err := readConfig(configFile)
	configFile.Close()
	if err == nil {
		err = setUp(config, control, outside)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
		_ = linux.SendPacket(control, Event{Kind: Failed, Error: err.Error()})
		return 1
	}
	return newReaper(control).serve()
}

// setUp sets the sandbox up as configured and reports to the supervisor that it is ready.
// outside is the process id of init in the supervisor's PID namespace.
func setUp(config Config, control *net.UnixConn, outside int) error {
	if err := unix.Sethostname([]byte(config.Hostname)); err != nil {
		return fmt.Errorf("set host name %s: %w", config.Hostname, err)
	}
	// The network comes first: mounts may cover the path of the TUN device.
	open, err := setUpNetwork(config.Network)
	if err != nil {
		return err
	}
	if err := setUpMounts(config); err != nil {
		return err
	}
	if config.IDMap.oneUID() {
		if err := linux.FakeOwnership(); err != nil {
			return err
		}
	}
	// The remaining settings of the network are files of the new /proc.
	if err := setUpForwarding(config.Network); err != nil {
		return err
	}
	listenerFile, err := listenTCP(config.Network.Listen)
	if err != nil {
		return fmt.Errorf("listen for the API server: %w", err)
	}
	files := append([]*os.File{listenerFile}, open.overlay...)
	if config.Socket != "" {
		socket, err := listenAt(config.Socket)
		if err != nil {
			return err
		}
		files = append(files, socket)
	}
	outsideToo := config.Network.ListenOutside.IsValid()
	if outsideToo {
		listenerFile, err := listenTCP(config.Network.ListenOutside)
		if err != nil {
			return fmt.Errorf("listen for a program outside: %w", err)
		}
		files = append(files, listenerFile)
	}
	if open.egress != nil {
		files = append(files, open.egress)
	}
	err = linux.SendPacket(control, Event{Kind: Ready, PID: outside, Queues: len(open.overlay), Socket: config.Socket != "", Outside: outsideToo}, files...)
	linux.CloseAll(files)
	return err
}

func listenTCP(address netip.AddrPort) (*os.File, error) {
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(address))
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	return listener.File()
}

// listenAt listens on a unix socket that only root in the sandbox may use.
func listenAt(path string) (*os.File, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	defer listener.Close()
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, fmt.Errorf("guard the socket %s: %w", path, err)
	}
	return listener.File()
}

// endLimit bounds how long init waits for all other processes to end. The janitor kills
// init after the same time.
const endLimit = time.Second

// reaper starts commands and reaps every process of the namespace; orphans
// become its children.
type reaper struct {
	control *net.UnixConn
	// mu is held while a command starts, so that the command cannot be reaped
	// before commands has its name.
	mu       sync.Mutex
	commands map[int]string // names by process id
}

func newReaper(control *net.UnixConn) *reaper {
	return &reaper{control: control, commands: map[int]string{}}
}

// serve acts on the supervisor's requests until the supervisor is gone.
func (r *reaper) serve() int {
	go r.reap()
	go r.watchStopped()
	for {
		var message request
		files, err := linux.ReceivePacket(r.control, &message)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "init: read request:", err)
			}
			r.endAll()
			return 0
		}
		switch {
		case message.Start != nil:
			r.start(message.Start, files)
		case message.Signal != nil:
			r.signal(message.Signal)
		}
		linux.CloseAll(files)
	}
}

// endAll kills every process and returns when all are reaped, or after endLimit.
// The kernel would kill them when this process ends. But then it would not add
// their processor time to this process and its parents, where Slurm reads it.
func (r *reaper) endAll() {
	for deadline := time.Now().Add(endLimit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		_ = unix.Kill(-1, unix.SIGKILL) // again: a process may have forked in the meantime
		if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil); errors.Is(err, unix.ECHILD) {
			return
		}
	}
}

func (r *reaper) start(command *Command, files []*os.File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := forkCommand(command, files)
	if err != nil {
		r.report(Event{Kind: Failed, Name: command.Name, Error: fmt.Sprintf("start %s: %v", command.Path, err)})
		return
	}
	r.commands[pid] = command.Name
	r.report(Event{Kind: Started, Name: command.Name, PID: pid})
}

// forkCommand starts a command in its own session, with its log as output, and returns the
// process id. files become its descriptors from 3 up; if HasStdout is set, the first is
// standard output instead.
func forkCommand(command *Command, files []*os.File) (int, error) {
	log, err := openLog(command.Log)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	fds := []uintptr{null.Fd(), log.Fd(), log.Fd()}
	if command.HasStdout {
		if len(files) == 0 {
			return 0, errors.New("the file for its output is missing")
		}
		fds[1] = files[0].Fd()
		files = files[1:]
	}
	for _, file := range files {
		fds = append(fds, file.Fd())
	}
	return syscall.ForkExec(command.Path, append([]string{command.Path}, command.Args...), &syscall.ProcAttr{
		Dir:   "/",
		Env:   command.Env,
		Files: fds,
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
}

func (r *reaper) signal(message *signalling) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for pid, name := range r.commands {
		if name == message.Name {
			_ = unix.Kill(pid, message.Signal)
		}
	}
}

// reap collects children as they end. A blocking wait needs no SIGCHLD. While
// there are no children, it polls.
func (r *reaper) reap() {
	for {
		var info unix.Siginfo
		// Wait without reaping, so that no new process can get the process id
		// before the command's entry is removed.
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			time.Sleep(50 * time.Millisecond) // no children yet
			continue
		}
		r.collect()
	}
}

func (r *reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, &usage)
		if err != nil || pid <= 0 {
			return
		}
		name, known := r.commands[pid]
		if !known {
			continue
		}
		delete(r.commands, pid)
		result := Status{MaxRSS: usage.Maxrss << 10}
		if status.Signaled() {
			result.Signal = status.Signal()
		} else {
			result.Code = status.ExitStatus()
		}
		r.report(Event{Kind: Exited, Name: name, Status: result})
	}
}

// watchStopped continues processes that were stopped by a signal, as KeepRunning does.
// Otherwise a pod would hang silently while its shim, or a runc of the shim, is stopped.
func (r *reaper) watchStopped() {
	for range time.Tick(stopPoll) {
		parents, err := linux.Parents()
		if err != nil {
			continue // /proc is missing, without which nothing works
		}
		r.mu.Lock()
		for pid := range parents {
			if linux.ProcessState(pid) != linux.ProcessStopped || !r.isPart(pid, parents) {
				continue
			}
			name, known := r.commands[pid]
			if linux.Resume(pid) && known {
				r.report(Event{Kind: Stopped, Name: name})
			}
		}
		r.mu.Unlock()
	}
}

// isPart reports whether a process belongs to the node, and not to a pod. These belong to
// the node: children of the commands; shims, whose parent is this process once containerd
// has started them; and descendants of both that run a program from the same folder as their
// parent, which only berth's own programs do. A process that was forked and has not executed
// its program yet counts, too, because its parent waits for that. So does the init of runc until
// it executes the program of a container. The caller holds mu.
func (r *reaper) isPart(pid int, parents map[int]int) bool {
	for isInitOfRunc(pid) {
		pid = parents[pid]
	}
	folder := programFolder(pid)
	for {
		parent := parents[pid]
		if _, ofCommand := r.commands[parent]; ofCommand || parent == os.Getpid() {
			return true
		}
		if parent == 0 || programFolder(parent) != folder {
			return false
		}
		pid = parent
	}
}

// isInitOfRunc reports whether a process is the first process of a container before it becomes
// the container's program. runc executes a protected copy of itself for it, with the path /runc,
// and waits for it.
func isInitOfRunc(pid int) bool {
	program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	arguments, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return filepath.Base(program) == "runc" && string(arguments) == "berth-runc\x00init\x00"
}

// programFolder returns the folder of a process's program, or "." for one that has
// just ended.
func programFolder(pid int) string {
	program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return filepath.Dir(program)
}

// report sends an event. Callers hold mu, which keeps events in order. It only
// logs an error, because serve ends the process when the supervisor is gone.
func (r *reaper) report(event Event) {
	if err := linux.SendPacket(r.control, event); err != nil {
		fmt.Fprintln(os.Stderr, "init: report:", err)
	}
}
