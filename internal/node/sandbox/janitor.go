package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// mappedEnv marks the janitor's second execution, as user 0.
const mappedEnv = "BERTH_SANDBOX_MAPPED"

// Janitor is the main function of the janitor process. It returns its exit
// status.
func Janitor() int {
	OutliveSignals()
	lifeline := os.NewFile(lifelineFD, "lifeline")
	if os.Getenv(mappedEnv) == "" {
		return waitForMaps(lifeline)
	}
	configFile := os.NewFile(configFD, "config")
	config, err := readConfig(configFile)
	if err != nil {
		fmt.Fprintln(os.Stderr, "janitor:", err)
		return 1
	}
	for _, fd := range []int{lifelineFD, lockFD} {
		unix.CloseOnExec(fd)
	}
	if err := holdGroup(config.Cgroup); err != nil {
		fmt.Fprintln(os.Stderr, "janitor:", err)
	}
	if config.Run != "" {
		if err := guardInit(lifeline, configFile, config); err != nil {
			fmt.Fprintln(os.Stderr, "janitor:", err)
		}
	}
	if config.Cgroup != "" {
		if err := RemoveCgroup(config.Cgroup); err != nil {
			fmt.Fprintln(os.Stderr, "janitor:", err)
		}
	}
	if err := removeAll(config.Remove); err != nil {
		fmt.Fprintln(os.Stderr, "janitor:", err)
		return 1
	}
	for _, directory := range config.Prune {
		_ = os.Remove(directory) // another run's may be there
	}
	return 0
}

// OutliveSignals makes this process indifferent to what reaches everybody in a
// job at once (scancel, time limit, Ctrl-C): the supervisor orders the end.
// The signals are caught, not ignored: a child would inherit ignoring, and
// with it every process of every pod.
func OutliveSignals() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM)
}

// stopPoll is the interval of the checks on a process that a signal may have
// stopped.
const stopPoll = 2 * time.Second

// KeepRunning continues a child that was stopped by a signal, until gone is
// closed: to everybody else a stopped part looks alive, and hangs. Slurm stops
// all of a job to suspend it, this process included.
func KeepRunning(pid int, gone <-chan struct{}) {
	ticker := time.NewTicker(stopPoll)
	defer ticker.Stop()
	for {
		linux.Resume(pid)
		select {
		case <-gone:
			return
		case <-ticker.C:
		}
	}
}

// waitForMaps waits until the supervisor has written the id maps, then starts
// this program again: a process that was started without a mapped id has no
// capabilities until it executes a program as the namespace's user 0.
func waitForMaps(lifeline *os.File) int {
	if _, err := io.ReadFull(lifeline, make([]byte, 1)); err != nil {
		return 1 // the supervisor gave up and reports the reason
	}
	for _, fd := range []int{lifelineFD, configFD, controlFD, lockFD} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			fmt.Fprintln(os.Stderr, "janitor: keep descriptor:", err)
			return 1
		}
	}
	err := syscall.Exec("/proc/self/exe", []string{"berth", JanitorArg}, []string{mappedEnv + "=1"})
	fmt.Fprintln(os.Stderr, "janitor: start again in the user namespace:", err)
	return 1
}

// guardInit starts init and returns when it has ended, which it makes happen
// once the supervisor is gone. The configuration is read by init once more: a
// file of this process that nobody used any more would be closed by the garbage
// collector.
func guardInit(lifeline, configFile *os.File, config Config) error {
	cgroup := config.Cgroup
	// The parent-death signal is tied to the thread that forked.
	runtime.LockOSThread()
	control := os.NewFile(controlFD, "control")
	if err := leaveKeys(); err != nil {
		return errors.Join(err, reportFailed(control, err), leaveGroup(cgroup))
	}
	command := exec.Command("/proc/self/exe", InitArg)
	command.Args[0] = "berth"
	command.Dir = "/"
	command.Env = []string{}
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	// The numbers inside equal those outside.
	command.ExtraFiles = []*os.File{nil, configFile, control}
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWCGROUP,
		Pdeathsig: syscall.SIGKILL,
	}
	if err := command.Start(); err != nil {
		err = fmt.Errorf("make namespaces: %w", err)
		return errors.Join(err, reportFailed(control, err), leaveGroup(cgroup))
	}
	if err := leaveGroup(cgroup); err != nil {
		fmt.Fprintln(os.Stderr, "janitor:", err) // the supervisor fails too, and ends this
	}
	configFile.Close()
	control.Close() // or init's end would not show as end-of-file
	gone, left := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, lifeline)
		close(left)
		select {
		case <-gone: // by itself, as its supervisor is no longer there
		case <-time.After(endLimit):
			_ = command.Process.Kill()
		}
	}()
	go KeepRunning(command.Process.Pid, gone)
	// Wait returns when init is reaped, and the kernel lets that happen only
	// after every process of the PID namespace is gone.
	err := command.Wait()
	close(gone)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil // the supervisor sees and explains it
	}
	<-left
	return err
}

// reportFailed tells the supervisor why there is no init. The janitor's log may be
// in a directory that it removes.
func reportFailed(control *os.File, failure error) error {
	conn, err := linux.PacketConn(control)
	if err != nil {
		return err
	}
	defer conn.Close()
	return linux.SendPacket(conn, Event{Kind: Failed, Error: failure.Error()})
}

// leaveKeys keeps the user's keys, such as Kerberos tickets, from everything
// inside. The sandbox gets its own session keyring instead of the user's, and a
// filter against the calls on keys, which reach the user's other keys by number.
// It acts on the calling thread, which then starts init. The user's command has
// another parent and keeps its keys.
func leaveKeys() error {
	if err := linux.JoinSessionKeyring(); err != nil {
		return explainKeys(err)
	}
	return linux.DenyKeys()
}

// explainKeys adds the remedy where a user has as many keys as the kernel allows.
func explainKeys(err error) error {
	if !errors.Is(err, unix.EDQUOT) {
		return err
	}
	return fmt.Errorf("%w; your keys on this machine are used up ('cat /proc/key-users'): "+
		"remove some, or an administrator allows more: sysctl -w kernel.keys.maxkeys=5000", err)
}

// removeAll deletes directories and all that is below them. Nothing may be
// mounted there any more: mounts lived in init's namespace.
func removeAll(directories []string) error {
	var failures []error
	for _, directory := range directories {
		if !filepath.IsAbs(directory) || filepath.Clean(directory) == "/" {
			failures = append(failures, fmt.Errorf("remove %q: not an absolute directory", directory))
			continue
		}
		if err := os.RemoveAll(directory); err != nil {
			makeWritable(directory)
			if err := os.RemoveAll(directory); err != nil {
				failures = append(failures, err)
			}
		}
	}
	return errors.Join(failures...)
}

// makeWritable lets directories that a pod made read-only be emptied. Needed
// only where the janitor has no capabilities over their owner.
func makeWritable(directory string) {
	_ = filepath.WalkDir(directory, func(path string, entry os.DirEntry, err error) error {
		if entry != nil && entry.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
}
