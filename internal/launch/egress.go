package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/launch/supervisor"
	"berth.dev/berth/internal/network/egress"
	"berth.dev/berth/internal/network/overlay"
	"berth.dev/berth/internal/node/sandbox"
)

// NetArg starts this program again as the net role. main calls NetRole then.
const NetArg = "net-role"

// Descriptors of the net role.
const (
	netNotifyFD = 3
	netConfigFD = 4
	// netTUNFD is the TUN device of the egress. These follow, in this order: the
	// queues of the mesh, one packet socket per queue, one socket for streams,
	// the published ports, and the files of the Switch.
	netTUNFD = 5
)

// netConfig is the configuration of the net role.
type netConfig struct {
	Gateway netip.Addr
	Cluster []netip.Prefix
	// Refuse holds the ranges that pods must not reach, as the user demands.
	Refuse []netip.Prefix
	MTU    int
	Debug  bool
	// Queues is the number of queues of the mesh, or 0 on a single node.
	Queues int
	Mesh   mesh
	// Published holds the destinations of the published ports of this host.
	Published []netip.AddrPort
	// Switch is nil if this host has no Switch.
	Switch *switchConfig
}

// refusedByUser returns the ranges that the user closes to pods.
func refusedByUser(spec cluster.Spec) (ranges []netip.Prefix, err error) {
	for _, refused := range spec.Network.Refuse {
		prefix, err := netip.ParsePrefix(refused)
		if err != nil {
			return nil, exitcode.Wrap(exitcode.Usage, err)
		}
		ranges = append(ranges, prefix.Masked())
	}
	return ranges, nil
}

// refusedOutside returns all ranges closed to pods, for processes that connect to
// the outside on their behalf.
func refusedOutside(spec cluster.Spec, plan cluster.Plan) ([]netip.Prefix, error) {
	config := egress.Default()
	config.Gateway, config.Cluster = plan.Addresses.Gateway, plan.Addresses.Ranges()
	more, err := refusedByUser(spec)
	config.Refuse = append(config.Refuse, more...)
	return config.Refused(), err
}

// netRole returns the role that carries packets between pods and the outside
// world, from the host's network namespace.
func netRole(spec cluster.Spec, plan cluster.Plan, box *sandbox.Sandbox, t *members, doors []publishedPort, s *switching, c *supervisor.Supervisor) (*supervisor.Role, error) {
	config := netConfig{
		Gateway: plan.Addresses.Gateway,
		Cluster: plan.Addresses.Ranges(),
		MTU:     cluster.LocalMTU,
		Debug:   plan.Verbosity > 2,
		Queues:  len(box.Mesh),
	}
	var err error
	if config.Refuse, err = refusedByUser(spec); err != nil {
		return nil, err
	}
	passed := append([]*os.File{box.TUN}, box.Mesh...)
	if t != nil {
		config.Mesh = t.mesh
		passed = append(passed, t.sockets.Files()...)
	}
	for _, d := range doors {
		config.Published = append(config.Published, netip.AddrPortFrom(plan.Addresses.Node, d.Node))
		passed = append(passed, d.listener)
	}
	if s != nil {
		config.Switch = &s.config
		passed = append(passed, s.netFiles()...)
	}
	var process *os.Process
	return &supervisor.Role{
		Name:    "net",
		Outside: true,
		Start: func(r *supervisor.Role, files []*os.File) error {
			encoded, err := json.Marshal(config)
			if err != nil {
				return err
			}
			configFile, err := linux.MemoryFile("net-config", encoded)
			if err != nil {
				return err
			}
			defer configFile.Close()
			logFile, err := os.OpenFile(r.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			if err != nil {
				return fmt.Errorf("open log: %w", err)
			}
			defer logFile.Close()
			command := exec.Command("/proc/self/exe", NetArg)
			command.Args[0] = "berth"
			command.Env = []string{}
			command.Dir = "/"
			command.Stdout, command.Stderr = logFile, logFile
			command.ExtraFiles = slices.Concat(files, []*os.File{configFile}, passed)
			command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := command.Start(); err != nil {
				return err
			}
			process = command.Process
			c.Go(func() {
				_ = command.Wait()
				c.ReapFDHolders(NetArg)
				c.Ended(r.Name, supervisor.Status(command.ProcessState))
			})
			return nil
		},
		Kill:    func(*supervisor.Role) { _ = process.Kill() },
		Release: s.release,
		Resume:  func() bool { return linux.Resume(process.Pid) },
	}, nil
}

// NetRole is the main function of the net role. It returns the exit status. The
// role ends with the sandbox, whose end closes the TUN device, or with its
// parent.
func NetRole() int {
	notifier := notify.New(netNotifyFD)
	if err := runNet(notifier); err != nil {
		notifier.Fatal(err)
		fmt.Fprintln(os.Stderr, "net:", err)
		return 1
	}
	return 0
}

func runNet(notifier *notify.Notifier) error {
	sandbox.OutliveSignals()
	// A parent-death signal would be tied to the thread that forked, and Go's
	// threads come and go. The supervisor is the only reader of the notify pipe,
	// so the pipe breaks when the supervisor ends.
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		waitForReader(netNotifyFD)
		cancel(errors.New("the supervisor is gone"))
	}()
	configFile := os.NewFile(netConfigFD, "config")
	var told netConfig
	err := json.NewDecoder(io.NewSectionReader(configFile, 0, 1<<20)).Decode(&told)
	configFile.Close()
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	level := slog.LevelInfo
	if told.Debug {
		level = slog.LevelDebug
	}
	config := egress.Default()
	config.Gateway, config.Cluster, config.MTU = told.Gateway, told.Cluster, told.MTU
	config.Refuse = append(config.Refuse, told.Refuse...)
	config.Log = slog.New(&noticing{Handler: slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}), notifier: notifier})
	in := inherited{next: netTUNFD}
	tun, err := in.file()
	if err != nil {
		return err
	}
	between, err := openMesh(told, &in, config.Log)
	if err != nil {
		return err
	}
	if config.Publish, err = takePublished(told, &in); err != nil {
		return err
	}
	sockets, err := openSwitch(told, &in, config.Reaches(), config.Log)
	if err != nil {
		return err
	}
	config.Counters = &egress.Counters{}
	notifier.Counts = func() map[string]uint64 { return netCounts(config.Counters, between, sockets) }
	go notifier.Alive(ctx, nil)
	notifier.Ready()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + overlay.Threads(told.Queues))
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return egress.Run(groupCtx, tun, config) })
	if between != nil {
		group.Go(func() error { return between.Run(groupCtx) })
	}
	if sockets != nil {
		group.Go(func() error { return sockets.run(groupCtx) })
	}
	err = group.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// openMesh prepares the network between the nodes. It returns nil on a single
// node.
func openMesh(told netConfig, in *inherited, log *slog.Logger) (*overlay.Overlay, error) {
	if told.Queues == 0 {
		return nil, nil
	}
	config := overlay.Config{Key: told.Mesh.Key, Carrier: told.Mesh.Carrier, Nodes: told.Mesh.Nodes, Self: told.Mesh.Self, Log: log}
	for range told.Queues {
		queue, err := in.file()
		if err != nil {
			return nil, err
		}
		config.Queues = append(config.Queues, queue)
	}
	for range told.Queues {
		conn, err := passedAs(in, net.FilePacketConn)
		if err != nil {
			return nil, fmt.Errorf("use a socket between the nodes: %w", err)
		}
		config.Conns = append(config.Conns, conn.(*net.UDPConn))
	}
	listener, err := passedAs(in, net.FileListener)
	if err != nil {
		return nil, fmt.Errorf("use a socket between the nodes: %w", err)
	}
	config.Listener = listener.(*net.TCPListener)
	return overlay.New(config)
}

// inherited iterates over the descriptors that the supervisor passed, in order.
type inherited struct{ next int }

func (i *inherited) file() (*os.File, error) {
	i.next++
	return passedFile(i.next - 1)
}

// passedAs makes a socket from the next descriptor.
func passedAs[T any](in *inherited, use func(*os.File) (T, error)) (none T, err error) {
	file, err := in.file()
	if err != nil {
		return none, err
	}
	defer file.Close()
	return use(file)
}

// passedFile prepares a descriptor from the supervisor for Go's poller.
func passedFile(fd int) (*os.File, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("use passed descriptor %d: %w", fd, err)
	}
	return os.NewFile(uintptr(fd), "passed"), nil
}

// waitForReader returns when no process has the other end of a pipe open.
func waitForReader(fd int) {
	for {
		poll := []unix.PollFd{{Fd: int32(fd)}}
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if poll[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0 {
			return
		}
	}
}
