package fastpath

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/filter"
	"berth.dev/berth/internal/testutil"
)

type labServiceMap map[string]Route

func (d labServiceMap) Resolve(to netip.AddrPort) (Route, bool) {
	return d[to.String()], !d.Outside(to)
}

// Outside reports whether the address is a host's: nothing else is outside the lab's
// cluster.
func (d labServiceMap) Outside(to netip.AddrPort) bool {
	return netip.MustParsePrefix("192.0.2.0/24").Contains(to.Addr()) || netip.MustParsePrefix("2001:db8::/64").Contains(to.Addr())
}

type labPolicy struct {
	mu     sync.Mutex
	denied []string
}

func (p *labPolicy) Permits(_ netip.Addr, to netip.AddrPort) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.Contains(p.denied, to.String())
}

func (p *labPolicy) PermitsOutside(from netip.Addr, to netip.AddrPort) bool {
	return p.Permits(from, to)
}

func (p *labPolicy) deny(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.denied = append(p.denied, target)
}

// runSwitch runs a Switch, as the main function of its process.
func runSwitch() error {
	var config switchConfig
	if err := json.Unmarshal([]byte(os.Getenv("CONFIG")), &config); err != nil {
		return err
	}
	if os.Getenv("CONFINED") == "" {
		return confineSwitch(config.Old)
	}
	c := Default()
	c.Nodes, c.Self, c.Key = config.Nodes, config.Self, []byte("a key for tests that no job has.")
	policy := &labPolicy{denied: config.Denied}
	c.ServiceMap, c.Policy = labServiceMap(config.Services), policy
	c.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	c.Busy = config.Busy
	c.NonblockTimeout = labTimeout // the machine may be busy
	c.Timeout = labTimeout
	next := 2
	inherited := func(name string) *os.File {
		next++
		return os.NewFile(uintptr(next), name)
	}
	for range numListeners {
		listener, err := net.FileListener(inherited("listener"))
		if err != nil {
			return err
		}
		c.Listeners = append(c.Listeners, listener.(*net.TCPListener))
	}
	containers, err := net.FileListener(inherited("containers"))
	if err != nil {
		return err
	}
	if c.Inside, err = linux.PacketConn(inherited("bells")); err != nil {
		return err
	}
	c.Containers = containers.(*net.UnixListener)
	c.State, c.Lifeline = inherited("state"), inherited("lifeline")
	s, err := newSwitch(c, config.Without)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if target, ok := strings.CutPrefix(lines.Text(), "deny "); ok {
				policy.deny(target)
				n, err := s.Cut()
				fmt.Println(n, err)
				continue
			}
			if endpoints, ok := strings.CutPrefix(lines.Text(), "replace "); ok {
				var other []netip.AddrPort
				err := json.Unmarshal([]byte(endpoints), &other)
				fmt.Println(errors.Join(err, s.ReplaceNode(1-config.Self, other)))
				continue
			}
			json.NewEncoder(os.Stdout).Encode(s.Counters())
		}
	}()
	fmt.Println("ready")
	return errors.Join(s.Run(ctx), s.Close())
}

// confineSwitch executes this program again without capabilities and, if old is set, with
// the calls of an older kernel. All threads of a new program have what the thread had
// that executed it; without that, cgo (and so the race detector) would not let
// capabilities be dropped on all threads.
func confineSwitch(old bool) error {
	runtime.LockOSThread()
	if err := dropCapabilities(); err != nil {
		return err
	}
	if old {
		if err := refuseNewCalls(); err != nil {
			return err
		}
	}
	return unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), "CONFINED=1"))
}

// dropCapabilities gives the thread the rights of a user: it owns the user namespaces of
// nodes, and has no capabilities in its own. Root would receive capabilities by execve
// again.
func dropCapabilities() error {
	const noRoot, noRootLocked = 1, 2 // SECBIT_NOROOT, SECBIT_NOROOT_LOCKED
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, noRoot|noRootLocked, 0, 0, 0); err != nil {
		return fmt.Errorf("set securebits: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

// refuseNewCalls has the kernel answer the thread as Linux 5.14 does.
func refuseNewCalls() error {
	var p filter.Program
	p.Load(filter.OffsetCall)
	for call, argument := range map[uint32]struct{ number, value uint32 }{
		unix.SYS_PIDFD_OPEN: {1, unix.O_EXCL},
		unix.SYS_IOCTL:      {1, unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS},
		unix.SYS_SECCOMP:    {1, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV},
	} {
		p = append(p, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 4})
		p.Load(filter.OffsetArgs + 8*argument.number)
		p.When(argument.value, filter.Refuse(unix.EINVAL))
		p.End(unix.SECCOMP_RET_ALLOW)
	}
	p.End(unix.SECCOMP_RET_ALLOW)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	own := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&own))); errno != 0 {
		return fmt.Errorf("install a filter: %w", errno)
	}
	return nil
}

// startSwitch starts the Switch of a host, or a successor.
func (h *host) startSwitch() {
	t := h.lab
	t.Helper()
	config := switchConfig{Self: h.index, Services: t.config.services, Denied: t.config.denied, Without: t.config.without, Old: t.config.old, Busy: t.config.busy}
	for _, other := range t.hosts {
		pods := other.prefixes()
		config.Nodes = append(config.Nodes, Node{Endpoints: other.endpoints, Prefixes: pods[:]})
	}
	encoded, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	command := role(roleSwitch, "CONFIG="+string(encoded))
	command.ExtraFiles = append(slices.Clone(h.listeners), h.containers, h.bells, h.state, h.lifeline[1])
	if h.control, err = command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.answers = bufio.NewReader(out)
	h.ns.try(t, command.Start)
	if line := h.answer("start"); line != "ready" {
		t.Fatalf("no switch on host %d: %q", h.index, line)
	}
	h.process, h.ended = command, make(chan struct{})
	ended := h.ended
	go func() {
		command.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		if h.process != command {
			return
		}
		if testing.Verbose() {
			t.Logf("host %d: %v", h.index, h.counters())
		}
		h.control.Close()
		_ = t.within(fmt.Sprintf("end of the Switch of host %d", h.index), func() error {
			<-ended
			return nil
		})
		if !command.ProcessState.Success() {
			t.Errorf("switch of host %d: %v", h.index, command.ProcessState)
		}
		h.lifeline[0].Close()
		h.process = nil
		if !slices.ContainsFunc(t.hosts, func(h *host) bool { return h.process != nil }) {
			t.reapFDHolders()
		}
	})
}

// reapFDHolders waits for the processes that hold descriptors, which are children of
// the test now.
func (l *lab) reapFDHolders() {
	l.Helper()
	testutil.Eventually(l, "those that keep descriptors end", func() bool {
		children, err := linux.Children(os.Getpid())
		if err != nil {
			return false
		}
		left := len(children)
		for _, child := range children {
			if slices.ContainsFunc(l.hosts, func(h *host) bool {
				return h.agentPID == child || h.process != nil && h.process.Process.Pid == child
			}) {
				left--
			} else if pid, err := unix.Wait4(child, nil, unix.WNOHANG, nil); pid == child || err != nil {
				left--
			}
		}
		return left == 0
	})
}

func (h *host) counters() map[string]uint64 {
	h.lab.Helper()
	if _, err := io.WriteString(h.control, "counters\n"); err != nil {
		h.lab.Fatal(err)
	}
	line := h.answer("counters")
	counters := map[string]uint64{}
	if err := json.Unmarshal([]byte(line), &counters); err != nil {
		h.lab.Fatal(err)
	}
	return counters
}

// deny makes the policy of the host's Switch forbid a target, and returns the answer of
// the Switch.
func (h *host) deny(target string) string {
	h.lab.Helper()
	if _, err := io.WriteString(h.control, "deny "+target+"\n"); err != nil {
		h.lab.Fatal(err)
	}
	return h.answer("deny " + target)
}

// replace replaces the other host's node by one with these endpoints.
func (h *host) replace(endpoints []netip.AddrPort) {
	h.lab.Helper()
	encoded, err := json.Marshal(endpoints)
	if err == nil {
		_, err = fmt.Fprintf(h.control, "replace %s\n", encoded)
	}
	if err != nil {
		h.lab.Fatal(err)
	}
	if got := h.answer("replace"); got != "<nil>" {
		h.lab.Fatalf("replace a node: %s", got)
	}
}

// answer returns the next line of the Switch.
func (h *host) answer(to string) (line string) {
	h.lab.Helper()
	err := h.lab.within(fmt.Sprintf("%s of the Switch of host %d", to, h.index), func() (err error) {
		line, err = h.answers.ReadString('\n')
		return err
	})
	if err != nil {
		h.lab.Fatalf("%s of the Switch of host %d: %v", to, h.index, err)
	}
	return strings.TrimSpace(line)
}

// kill ends the Switch as a crash would.
func (h *host) kill() {
	h.process.Process.Kill()
	<-h.ended
	h.control.Close()
}
