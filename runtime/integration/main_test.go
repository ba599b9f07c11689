// Package integration runs the programs of this module together, as an
// unprivileged user, in the namespaces of a node. It needs a user with
// subordinate ids, newuidmap and unshare (util-linux 2.38):
//
//	make -C runtime test-userns TEST_USER=alice
package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	insideVariable  = "BERTH_TEST_INSIDE"
	libexecVariable = "BERTH_TEST_LIBEXEC"
	scratchVariable = "BERTH_TEST_SCRATCH"
	// All tests are run once with each snapshotter.
	snapshotterVariable = "BERTH_TEST_SNAPSHOTTER"
	// CI sets it to the tiers that it has: a skip is a failure then.
	tiersVariable = "BERTH_TEST_TIERS"
)

func TestMain(m *testing.M) {
	switch {
	case filepath.Base(os.Args[0]) == helperName:
		os.Exit(helper(os.Args[1:]))
	case os.Getenv(insideVariable) == "init":
		os.Exit(initialize())
	case os.Getenv(insideVariable) != "":
		if err := enter(); err != nil {
			fmt.Fprintln(os.Stderr, "set up namespaces:", err)
			os.Exit(1)
		}
		code := m.Run()
		// As the janitor does: files of subordinate ids can only be removed
		// from inside.
		if err := os.RemoveAll(os.Getenv(scratchVariable)); err != nil {
			fmt.Fprintln(os.Stderr, "remove scratch directory:", err)
			code = 1
		}
		os.Exit(code)
	default:
		os.Exit(outside())
	}
}

// outside runs this program again in new namespaces, for each snapshotter: first all
// tests with all subordinate ids, and then the test for a single id.
func outside() int {
	if reason := missing(); reason != "" {
		if os.Getenv(tiersVariable) != "" {
			fmt.Fprintln(os.Stderr, "FAIL: this tier was promised:", reason)
			return 1
		}
		fmt.Println("SKIP:", reason)
		return 0
	}
	code := 0
	for _, snapshotter := range []string{"overlayfs", "erofs"} {
		fmt.Println("=== with", snapshotter)
		code = max(code, inNamespaces(os.Args[1:], []string{snapshotterVariable + "=" + snapshotter}, "--map-auto"))
		code = max(code, inNamespaces([]string{"-test.v", "-test.run=^TestOneUID$"}, []string{snapshotterVariable + "=" + snapshotter, oneUIDVariable + "=1"}))
	}
	return code
}

// inNamespaces runs this program in the namespaces of a node.
func inNamespaces(args, env []string, mapping ...string) int {
	scratch, err := os.MkdirTemp("", "berth-runtime-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	namespaces := []string{
		"--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child",
		"--mount-proc", "--net", "--uts", "--ipc", "--cgroup",
	}
	cmd := exec.Command("unshare", slices.Concat(namespaces, mapping, []string{self}, args)...)
	cmd.Env = append(slices.Concat(os.Environ(), env), insideVariable+"=init", scratchVariable+"="+scratch)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()
	if _, statErr := os.Lstat(scratch); statErr == nil {
		fmt.Fprintln(os.Stderr, "FAIL: scratch directory is left:", scratch)
		return 1
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "unshare:", err)
		return 1
	}
	return 0
}

// initialize runs the tests as a child, and reaps orphans as PID 1, like a node's init. If
// the tests reaped orphans, they would also reap the children that they wait for.
func initialize() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"=tests")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid == cmd.Process.Pid {
			return status.ExitStatus()
		}
	}
}

func missing() string {
	if os.Getuid() == 0 {
		return "run as an unprivileged user: make -C runtime test-userns TEST_USER=alice"
	}
	for _, program := range []string{"unshare", "newuidmap"} {
		if _, err := exec.LookPath(program); err != nil {
			return program + " is not installed"
		}
	}
	if _, err := os.Stat(filepath.Join(libexec(), "containerd")); err != nil {
		return "build first: make -C runtime"
	}
	return ""
}

func libexec() string {
	if dir := os.Getenv(libexecVariable); dir != "" {
		return dir
	}
	return "../../libexec/berth"
}

// enter makes the mounts that a node has.
func enter() error {
	if oneUID() {
		if err := ignoreOwners(); err != nil {
			return fmt.Errorf("ignore owners: %w", err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	// Where the host has a cgroup2 itself, another cannot be put right over it.
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	// Empty, unless the user was given the cgroup that the tests run in.
	if err := unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("mount cgroup2: %w", err)
	}
	// The library behind CRI's network keeps its results in /var/lib/cni.
	if err := unix.Mount("tmpfs", "/var/lib", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /var/lib: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	return nil
}
