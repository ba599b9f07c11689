package fastpath

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/rpc"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil"
)

// Agent is the node's side of the lab: it has capabilities over the namespaces
// of pods, and starts their programs.
type Agent struct {
	node int

	mu       sync.Mutex
	pods     map[string]chan func()
	commands map[int]*running
}

type running struct {
	command *exec.Cmd
	out     *bufio.Reader
	stderr  errorOutput
}

func runAgent() error {
	a := &Agent{pods: map[string]chan func(){}, commands: map[int]*running{}}
	if _, err := fmt.Sscan(os.Getenv("NODE"), &a.node); err != nil {
		return err
	}
	calls, err := net.FileConn(os.NewFile(3, "calls"))
	if err != nil {
		return err
	}
	bells, err := linux.PacketConn(os.NewFile(4, "bells"))
	if err != nil {
		return err
	}
	go ServeInside(bells)
	server := rpc.NewServer()
	if err := server.Register(a); err != nil {
		return err
	}
	server.ServeConn(calls)
	for _, r := range a.commands {
		r.end()
	}
	return nil
}

// PodArgs describes a new pod.
type PodArgs struct {
	Name    string
	Address netip.Addr
	IPv6    netip.Addr
}

// AddPod makes a pod's network namespace.
func (a *Agent) AddPod(args PodArgs, _ *struct{}) error {
	work, ready := make(chan func()), make(chan error)
	testutil.OnNewThread(func() {
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range work {
			f()
		}
	})
	if err := <-ready; err != nil {
		return err
	}
	a.mu.Lock()
	a.pods[args.Name] = work
	a.mu.Unlock()
	var namespace *os.File
	err := on(work, func() (err error) {
		namespace, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		return errors.Join(err, trustAddresses())
	})
	if err != nil {
		return err
	}
	defer namespace.Close()
	bridge, err := netlink.LinkByName("pods0")
	if err != nil {
		return err
	}
	outer := "v" + args.Name
	if err := netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: outer, MasterIndex: bridge.Attrs().Index},
		PeerName:  "eth0", PeerNamespace: netlink.NsFd(namespace.Fd()),
	}); err != nil {
		return err
	}
	if err := testutil.SetUpLink(outer); err != nil {
		return err
	}
	return on(work, func() error {
		if err := testutil.SetUpLink("lo"); err != nil {
			return err
		}
		addresses := []netip.Prefix{netip.PrefixFrom(args.Address, 24), netip.PrefixFrom(args.IPv6, 64)}
		if err := errors.Join(testutil.SetUpLink("eth0", addresses...), settled(addresses)); err != nil {
			return err
		}
		for _, gateway := range []netip.Addr{netip.AddrFrom4([4]byte{10, 42, byte(a.node), 1}), netip.MustParseAddr(fmt.Sprintf("fd42:0:0:%d::1", a.node))} {
			if err := netlink.RouteAdd(&netlink.Route{Gw: gateway.AsSlice()}); err != nil {
				return err
			}
		}
		return nil
	})
}

func on(work chan func(), f func() error) (err error) {
	finished := make(chan struct{})
	work <- func() { defer close(finished); err = f() }
	<-finished
	return err
}

// StartArgs describes a program to start in a pod.
type StartArgs struct {
	Pod     string
	Program []string
	Env     []string
}

// Start starts a program and returns its process.
func (a *Agent) Start(args StartArgs, pid *int) error {
	a.mu.Lock()
	work := a.pods[args.Pod]
	a.mu.Unlock()
	r := &running{command: exec.Command("/proc/self/exe")}
	r.command.Env = append(os.Environ(), "ARGS="+strings.Join(args.Program, "\x1f"))
	r.command.Env = append(r.command.Env, args.Env...)
	r.command.Stderr = &r.stderr
	// Programs make children that outlive them; waiting ends with the program.
	r.command.WaitDelay = 1
	r.command.SysProcAttr = &syscall.SysProcAttr{}
	out, err := r.command.StdoutPipe()
	if err != nil {
		return err
	}
	r.out = bufio.NewReader(out)
	if err := on(work, r.command.Start); err != nil {
		return err
	}
	*pid = r.command.Process.Pid
	a.mu.Lock()
	defer a.mu.Unlock()
	a.commands[*pid] = r
	return nil
}

func (a *Agent) running(pid int) (*running, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.commands[pid]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("no program %d", pid)
}

// Line returns the next line that a program prints.
func (a *Agent) Line(pid int, line *string) error {
	r, err := a.running(pid)
	if err != nil {
		return err
	}
	if *line, err = r.out.ReadString('\n'); err != nil {
		return fmt.Errorf("read from the program: %w: %s", err, r.stderr.String())
	}
	*line = strings.TrimSpace(*line)
	return nil
}

// Wait returns what else a program prints, when it has ended well.
func (a *Agent) Wait(pid int, output *string) error {
	r, err := a.running(pid)
	if err != nil {
		return err
	}
	rest, _ := io.ReadAll(r.out)
	*output = string(rest)
	a.mu.Lock()
	delete(a.commands, pid)
	a.mu.Unlock()
	if err := r.command.Wait(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%w: %s%s", err, rest, r.stderr.String())
	}
	return nil
}

// Kill ends a program.
func (a *Agent) Kill(pid int, _ *struct{}) error {
	r, err := a.running(pid)
	if err != nil {
		return err
	}
	a.mu.Lock()
	delete(a.commands, pid)
	a.mu.Unlock()
	r.end()
	return nil
}

// Report returns what programs that nobody has waited for wrote to their standard error.
func (a *Agent) Report(_ int, text *string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for pid, r := range a.commands {
		*text += fmt.Sprintf("%d: %q; ", pid, r.stderr.String())
	}
	return nil
}

// end shows why a program has ended already.
func (r *running) end() {
	r.command.Process.Kill()
	_ = r.command.Wait()
	if text := r.stderr.String(); text != "" {
		fmt.Fprintf(os.Stderr, "killed %v: %s", r.command.Env[len(r.command.Env)-1], text)
	}
}
