package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Trials that the children run. The names are also the names of the outcomes.
const (
	trialUser     = "user"
	trialIDMap    = "idmap"
	trialMountNS  = "mount"
	trialNetNS    = "net"
	trialIPCNS    = "ipc"
	trialUTSNS    = "uts"
	trialCgroupNS = "cgroup"
	trialPIDNS    = "pid"

	trialProc       = "proc"
	trialSys        = "sys"
	trialCgroupfs   = "cgroupfs"
	trialTmpfs      = "tmpfs"
	trialOverlay    = "overlay"     // upper layer on the state directory
	trialOverlayRAM = "overlay-ram" // upper layer on tmpfs
	trialFUSE       = "fuse"
	trialTUN        = "tun"
	trialLinks      = "links"
	trialForwarding = "forwarding"
	trialSeccomp    = "seccomp"
	trialNotify     = "notify"
	trialNotifySend = "notify-send"
	trialPidfd      = "pidfd"
	trialPivot      = "pivot"
	trialKeyring    = "keyring"
	trialInotify    = "inotify"
	trialNftables   = "nftables" // followed by ":" and an expression for the parts
	trialNftables6  = "nftables6"
	trialConntrack  = "conntrack"
)

// trialLimit bounds all trials together. They take about 50 ms, unless a mount or name
// service hangs.
const trialLimit = 10 * time.Second

// outcome is the result of a trial. It crosses a pipe as a line of JSON.
type outcome struct {
	Trial string        `json:"trial"`
	Errno syscall.Errno `json:"errno,omitempty"`
	Error string        `json:"error,omitempty"`
}

func (o outcome) ok() bool { return o.Error == "" }

func newOutcome(trial string, err error) outcome {
	o := outcome{Trial: trial}
	if err != nil {
		o.Error = err.Error()
		errors.As(err, &o.Errno)
	}
	return o
}

// Trials runs the trials that need children.
type Trials struct {
	// Command holds the arguments that make this program call RunTrial. The arguments of
	// RunTrial follow them.
	Command []string
	// Memory reduces the memory that the process finds to the memory of its job, if
	// neither the kernel nor the environment limits it. It may be nil.
	Memory func(context.Context, Memory) Memory
	// StateDir is a directory for scratch files. It may be empty.
	StateDir string
}

// outcomes holds the outcome of each trial by its name. A trial without an outcome was not
// reached.
type outcomes map[string]outcome

// run makes all trials. It leaves nothing behind: the namespaces end with the
// children, and the scratch directory is removed.
func (t Trials) run(ctx context.Context, h *Host, ids IDMap) outcomes {
	ctx, cancel := context.WithTimeout(ctx, trialLimit)
	defer cancel()
	found := outcomes{}
	record := func(o outcome) { found[o.Trial] = o }

	var scratch string
	if t.StateDir != "" {
		var err error
		if scratch, err = os.MkdirTemp(t.StateDir, "berth-doctor-"); err == nil {
			defer os.RemoveAll(scratch)
		}
	}
	own := oneID(h.uid, os.Getgid())
	record(newOutcome(trialUser, t.child(ctx, own, record, "inside", scratch)))
	if found[trialUser].ok() && !ids.OneUID {
		record(newOutcome(trialIDMap, t.child(ctx, ids, record, "nothing")))
	}
	return found
}

// child starts the program in a new user namespace and records the outcomes that it
// writes. It returns an error if it cannot create the namespace or map the ids. If the
// child ends early, outcomes are missing, but child returns no error.
//
// The single line of a one-uid map is written before execve, as the sandbox
// does it: a process with no_new_privs keeps the capabilities that it has, but
// gains none by another execve.
func (t Trials) child(ctx context.Context, ids IDMap, record func(outcome), stage ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	arguments := slices.Clone(t.Command)
	attributes := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL}
	if ids.OneUID {
		attributes.UidMappings, attributes.GidMappings = sysMap(ids.UIDs), sysMap(ids.GIDs)
	} else {
		arguments = append(arguments, "hold")
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append(arguments, stage...)...)
	cmd.SysProcAttr = attributes
	// Do not wait for a grandchild that keeps the pipe open.
	cmd.WaitDelay = time.Second
	gate, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("create user namespace: %w", errnoOf(err))
	}
	if !ids.OneUID {
		err = writeMaps(ctx, cmd.Process.Pid, ids)
	}
	// A child in an uninterruptible mount can be neither killed nor waited
	// for: nothing below may depend on its end.
	stop := context.AfterFunc(ctx, func() { output.Close() })
	defer stop()
	if err == nil {
		if _, err := gate.Write([]byte{'\n'}); err == nil || ids.OneUID {
			readOutcomes(output, record)
		}
	}
	gate.Close()
	cancel()
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its output was read already
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(2 * time.Second):
	}
	return err
}

func sysMap(ranges []IDRange) []syscall.SysProcIDMap {
	var lines []syscall.SysProcIDMap
	for _, r := range ranges {
		lines = append(lines, syscall.SysProcIDMap{ContainerID: int(r.Inside), HostID: int(r.Outside), Size: int(r.Count)})
	}
	return lines
}

func readOutcomes(r io.Reader, record func(outcome)) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var o outcome
		if json.Unmarshal(lines.Bytes(), &o) == nil && o.Trial != "" {
			record(o)
		}
	}
}

// writeMaps writes the id maps of a process's new user namespace with newuidmap and
// newgidmap.
func writeMaps(ctx context.Context, pid int, ids IDMap) error {
	for _, program := range []struct {
		path   string
		ranges []IDRange
	}{{ids.NewUIDMap, ids.UIDs}, {ids.NewGIDMap, ids.GIDs}} {
		arguments := append([]string{strconv.Itoa(pid)}, mapArguments(program.ranges)...)
		output, err := exec.CommandContext(ctx, program.path, arguments...).CombinedOutput()
		if err != nil {
			said := strings.TrimSpace(string(output))
			return fmt.Errorf("run %s %s: %w (%s)", program.path, strings.Join(arguments, " "), err, said)
		}
	}
	return nil
}

func mapArguments(ranges []IDRange) []string {
	var words []string
	for _, r := range ranges {
		for _, n := range []uint32{r.Inside, r.Outside, r.Count} {
			words = append(words, strconv.FormatUint(uint64(n), 10))
		}
	}
	return words
}

// errnoOf returns the error number that err wraps, or err.
func errnoOf(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return err
}
