// Package testutil holds code that tests of several packages share: requirements
// on the machine, and checks that nothing is left behind. Only tests import it.
package testutil

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Need is something of the machine that a test cannot do without.
type Need string

const (
	// UserNS means that the user may create user and network namespaces.
	UserNS Need = "userns"
	// TUN means that the user may open /dev/net/tun.
	TUN Need = "tun"
	// Cgroup2 means that the user may create control groups of version 2.
	Cgroup2 Need = "cgroup2"
	// Root means that the test runs as root, to start processes of other users.
	Root Need = "root"
	// Munge means that munge and its daemon are installed. The daemon need not run.
	Munge Need = "munge"
	// S3 means that the S3 server of the tests is built.
	S3 Need = "s3"
)

// Require skips the test where the machine lacks a need. It fails the test
// instead where the environment variable BERTH_CI, a list with commas, says
// that the machine has it: there, a test must not be skipped in silence.
func Require(t testing.TB, needs ...Need) {
	t.Helper()
	promised := strings.Split(os.Getenv("BERTH_CI"), ",")
	for _, need := range needs {
		err := probe(need)
		switch {
		case err == nil:
		case slices.Contains(promised, string(need)):
			t.Fatalf("BERTH_CI promises %s, but: %v", need, err)
		default:
			t.Skipf("needs %s: %v", need, err)
		}
	}
}

func probe(need Need) error {
	switch need {
	case UserNS:
		command := exec.Command("/bin/true")
		command.SysProcAttr = NewNamespaces()
		return command.Run()
	case TUN:
		file, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
		if err == nil {
			file.Close()
		}
		return err
	case Cgroup2:
		return probeCgroup2()
	case Root:
		if os.Getuid() != 0 {
			return errors.New("not root")
		}
	case S3:
		_, err := s3Program()
		return err
	case Munge:
		for _, program := range []string{"munge", "unmunge", "munged"} {
			if _, err := exec.LookPath(program); err != nil {
				return err
			}
		}
	}
	return nil
}

// NewNamespaces makes a command root of a new user namespace, with a network
// namespace whose interfaces are all down.
func NewNamespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
}
