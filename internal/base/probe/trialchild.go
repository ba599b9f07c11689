package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// RunTrial runs the children's half of Trials: the program calls it when its
// command line starts with Trials.Command, with the arguments after it. It returns
// the exit status.
func RunTrial(arguments []string, stdin io.Reader, stdout io.Writer) int {
	// Namespaces, capabilities and filters belong to threads.
	runtime.LockOSThread()
	report := func(trial string, err error) {
		// One write per line, so that lines of two processes never mix.
		line, _ := json.Marshal(newOutcome(trial, err))
		_, _ = stdout.Write(append(line, '\n'))
	}
	if len(arguments) == 0 {
		return 2
	}
	rest := arguments[1:]
	switch arguments[0] {
	case "hold":
		return hold(rest, stdin)
	case "inside":
		return inside(rest, report)
	case "init":
		return trialInit(rest, report)
	case "nothing":
		return 0
	}
	return 2
}

// hold waits until the parent has written the id maps, then executes the
// program once more: execve gives a process that became root its
// capabilities.
func hold(rest []string, stdin io.Reader) int {
	if n, _ := stdin.Read(make([]byte, 1)); n != 1 || len(rest) == 0 {
		return 1
	}
	command := os.Args[:len(os.Args)-len(rest)-1]
	_ = unix.Exec("/proc/self/exe", append(append([]string{}, command...), rest...), os.Environ())
	return 1
}

// inside runs as root of the user namespace. It makes the other namespaces one by one, so
// that each has its own outcome. Then it runs trialInit in a child in a PID namespace.
func inside(rest []string, report func(string, error)) int {
	// The kernel clears the parent-death signal when a process gains capabilities.
	_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
	for _, namespace := range []struct {
		trial string
		flag  int
	}{
		{trialMountNS, unix.CLONE_NEWNS},
		{trialNetNS, unix.CLONE_NEWNET},
		{trialIPCNS, unix.CLONE_NEWIPC},
		{trialUTSNS, unix.CLONE_NEWUTS},
		{trialCgroupNS, unix.CLONE_NEWCGROUP},
	} {
		report(namespace.trial, unix.Unshare(namespace.flag))
	}
	command := os.Args[1 : len(os.Args)-len(rest)-1]
	cmd := exec.Command("/proc/self/exe", append(append(append([]string{}, command...), "init"), rest...)...)
	cmd.Stdout = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	err := cmd.Start()
	if err != nil {
		report(trialPIDNS, errnoOf(err))
		// Continue without a PID namespace, because the other outcomes are still useful.
		return trialInit(rest, report)
	}
	report(trialPIDNS, nil)
	if err := cmd.Wait(); err != nil {
		return 1
	}
	return 0
}

// trialInit runs as the first process of the PID namespace. Its mounts and files
// end with it.
func trialInit(rest []string, report func(string, error)) int {
	scratch := ""
	if len(rest) > 0 {
		scratch = rest[0]
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		report(trialTmpfs, fmt.Errorf("make mounts private: %w", err))
		scratch = ""
	}
	ram := scratch
	if ram == "" {
		ram = os.TempDir() // covered in this mount namespace only
	} else {
		ram += "/ram"
		_ = os.Mkdir(ram, 0o700)
	}
	err := unix.Mount("tmpfs", ram, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700,size=4m")
	report(trialTmpfs, err)
	trials := []struct {
		name string
		try  func() error
	}{
		{trialProc, func() error { return mountAt(ram+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "") }},
		{trialSys, func() error { return mountAt(ram+"/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "") }},
		{trialCgroupfs, func() error {
			return mountAt(ram+"/cgroup", "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		}},
		{trialOverlayRAM, func() error { return tryOverlay(ram + "/layers") }},
		{trialFUSE, func() error { return tryFUSE(ram + "/fuse") }},
		{trialTUN, tryTUN},
		{trialLinks, tryLinks},
		{trialForwarding, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }},
		{trialPidfd, tryPidfd},
		{trialKeyring, tryKeyring},
		{trialInotify, tryInotify},
	}
	if err == nil {
		for _, trial := range trials {
			report(trial.name, trial.try())
		}
	}
	if scratch != "" {
		report(trialOverlay, tryOverlay(scratch+"/layers"))
	}
	for _, family := range nftFamilies() {
		tryNftables(family, report)
	}
	report(trialConntrack, tryConntrack())
	// These two change the process for good, so they come last.
	report(trialPivot, tryPivot(ram))
	tryNotify(report)
	return 0
}

func mountAt(target, kind string, flags uintptr, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	return unix.Mount(kind, target, kind, flags, data)
}

// tryOverlay mounts an overlay as containerd does in a user namespace and
// removes a lower file, because a mount that works may still lack what
// whiteouts need (tmpfs before Linux 6.6 has no user.* attributes).
func tryOverlay(dir string) error {
	for _, sub := range []string{"/lower/sub", "/upper", "/work", "/merged"} {
		if err := os.MkdirAll(dir+sub, 0o755); err != nil {
			return fmt.Errorf("make layers: %w", err)
		}
	}
	if err := os.WriteFile(dir+"/lower/sub/file", []byte("x"), 0o644); err != nil {
		return fmt.Errorf("make layers: %w", err)
	}
	data := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work,userxattr", dir)
	if err := unix.Mount("overlay", dir+"/merged", "overlay", 0, data); err != nil {
		return fmt.Errorf("mount overlay: %w", err)
	}
	defer func() {
		_ = unix.Unmount(dir+"/merged", unix.MNT_DETACH)
		// The kernel makes this directory without any permission bits.
		_ = os.Chmod(dir+"/work/work", 0o700)
	}()
	if err := os.RemoveAll(dir + "/merged/sub"); err != nil {
		return fmt.Errorf("remove a directory of a lower layer: %w", err)
	}
	// A new directory in the place of a lower one is marked opaque.
	if err := os.Mkdir(dir+"/merged/sub", 0o755); err != nil {
		return fmt.Errorf("replace a directory of a lower layer: %w", err)
	}
	if _, err := os.Stat(dir + "/merged/sub/file"); err == nil {
		return errors.New("a removed file is still there: the upper file system has no user.* extended attributes")
	}
	return nil
}

// FUSEArg is the argument of the child of MountFUSE.
const FUSEArg = "fuse-trial"

// MountFUSE checks that this user can mount with FUSE in a user namespace. A
// child of this program tries it in TryFUSE. It does not report that user
// namespaces are unavailable; another check does. It takes a few milliseconds.
func MountFUSE(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, trialLimit)
	defer cancel()
	own := oneID(os.Getuid(), os.Getgid())
	command := exec.CommandContext(ctx, "/proc/self/exe", FUSEArg)
	command.Env = []string{}
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: sysMap(own.UIDs), GidMappings: sysMap(own.GIDs),
		Pdeathsig: syscall.SIGKILL,
	}
	command.WaitDelay = trialLimit
	return fuseOutcome(command.Output())
}

// fuseOutcome returns the result that the child of MountFUSE reported, or why
// there is none.
func fuseOutcome(said []byte, err error) error {
	ended := &exec.ExitError{}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM) && !errors.As(err, &ended):
		return nil // no user namespace
	case len(said) > 0:
		return errors.New(string(said))
	}
	return fmt.Errorf("try to mount with FUSE: %w", err)
}

// TryFUSE runs the child's half of MountFUSE. It returns the exit status.
func TryFUSE(stdout io.Writer) int {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = tryFUSE(os.TempDir()) // covered in this mount namespace only
	}
	if err != nil {
		fmt.Fprint(stdout, err)
		return 1
	}
	return 0
}

// tryFUSE mounts without serving, as images are mounted, because a kernel may
// forbid the mount itself.
func tryFUSE(target string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/fuse: %w", err)
	}
	defer unix.Close(device)
	data := fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions", device)
	if err := unix.Mount("berth", target, "fuse.berth", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOATIME, data); err != nil {
		return fmt.Errorf("mount fuse: %w", err)
	}
	return unix.Unmount(target, unix.MNT_DETACH)
}

// tryPivot changes the root as runc does for each container.
func tryPivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	return unix.PivotRoot(".", ".")
}
