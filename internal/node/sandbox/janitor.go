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

// Janitor runs the janitor process, and returns its exit status. The janitor starts
// init, ends it when the supervisor is gone, and then removes the run's files and its
// control group.
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
		_ = os.Remove(directory) // fails while it has files of another run
	}
	return 0
}

// OutliveSignals makes this process survive signals that reach all processes of a
// job at once (scancel, time limit, Ctrl-C), because only the supervisor decides
// when it ends. The signals are caught, not ignored: children, and so all
// processes of pods, would inherit ignored signals.
func OutliveSignals() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM)
}

// stopPoll is the interval of the checks on a process that a signal may have
// stopped.
const stopPoll = 2 * time.Second

// KeepRunning continues a child whenever a signal stopped it, until gone is
// closed. A stopped process would look alive to the others and make them hang.
// Slurm can still suspend the job, because it stops this process, too.
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

// waitForMaps waits until the supervisor has written the id maps, then executes
// this program again. Only by executing a program as user 0 of the namespace does
// a process that started without a mapped id get its capabilities.
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

// guardInit starts init, ends it once the supervisor is gone, and returns when
// init has ended. Init reads the configuration, too. Callers pass the open files,
// because the garbage collector would close unreferenced ones.
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
	// Init inherits the files with the descriptors that they have here.
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
		fmt.Fprintln(os.Stderr, "janitor:", err) // the supervisor fails too, and ends this process
	}
	configFile.Close()
	control.Close() // otherwise the supervisor would see no end-of-file when init ends
	gone, left := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, lifeline)
		close(left)
		select {
		case <-gone: // init ended itself, because the supervisor is gone
		case <-time.After(endLimit):
			_ = command.Process.Kill()
		}
	}()
	go KeepRunning(command.Process.Pid, gone)
	// Wait returns when init is reaped, and the kernel lets that happen only
	// after every process of the PID namespace is gone.
	err := command.Wait()
	close(gone)
	if errors.As(err, new(*exec.ExitError)) {
		err = nil // the supervisor sees and explains it
	}
	<-left
	return err
}

// reportFailed sends the supervisor the reason why init did not start. The log
// does not suffice, as it may be in a directory that the janitor removes.
func reportFailed(control *os.File, failure error) error {
	conn, err := linux.PacketConn(control)
	if err != nil {
		return err
	}
	defer conn.Close()
	return linux.SendPacket(conn, Event{Kind: Failed, Error: failure.Error()})
}

// leaveKeys hides the user's keys, such as Kerberos tickets, from all processes of the
// sandbox. They get their own session keyring instead of the user's. A seccomp filter
// denies them the system calls on keys, which could name the user's other keys by number.
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

// removeAll deletes directories and all that is below them. Nothing is mounted
// there any more, because mounts ended with init's namespace.
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

// makeWritable makes all directories below one writable, so that they can be
// emptied. Only a janitor without capabilities over their owner needs it.
func makeWritable(directory string) {
	_ = filepath.WalkDir(directory, func(path string, entry os.DirEntry, err error) error {
		if entry != nil && entry.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
}
