package netrole

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"syscall"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/supervisor"
	"berth.dev/berth/internal/node/sandbox"
)

// Parent holds the inputs of the net role. They stay the same when the role is started
// again.
type Parent struct {
	Spec cluster.Spec
	Plan cluster.Plan
	Box  *sandbox.Sandbox
	// Overlay and Sockets are for the network between the nodes. Overlay is nil on a
	// single node.
	Overlay   *hostnet.Overlay
	Sockets   hostnet.Sockets
	Published []Published
	// Held is nil without a Switch.
	Held *Held
}

// Role returns the role that carries packets between pods and the outside world,
// from the host's network namespace.
func (p Parent) Role(s *supervisor.Supervisor) (*supervisor.Role, error) {
	config := config{
		Gateway: p.Plan.Addresses.Gateway,
		Node:    p.Plan.Addresses.Node,
		Cluster: p.Plan.Addresses.Ranges(),
		MTU:     cluster.LocalMTU,
		Debug:   p.Spec.DebugDir != "",
		Queues:  len(p.Box.Overlay),
	}
	var err error
	if config.Refuse, err = refusedByUser(p.Spec); err != nil {
		return nil, err
	}
	var fds linux.FDTable
	fds.Add(fdTUN, p.Box.TUN)
	if p.Overlay != nil {
		config.Overlay = *p.Overlay
		fds.Add(fdQueue, p.Box.Overlay...)
		fds.Add(fdPackets, p.Sockets.Packets...)
		fds.Add(fdStreams, p.Sockets.Streams)
	}
	for _, port := range p.Published {
		config.Published = append(config.Published, netip.AddrPortFrom(p.Plan.Addresses.Node, port.Node))
		fds.Add(fdPublished, port.Listener)
	}
	if p.Held != nil {
		config.Switch = &p.Held.config
		p.Held.addTo(&fds)
	}
	var process *os.Process
	return &supervisor.Role{
		Name:    "net",
		Outside: true,
		Start: func(r *supervisor.Role, files []*os.File) error {
			logFile, err := os.OpenFile(r.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			if err != nil {
				return fmt.Errorf("open log: %w", err)
			}
			defer logFile.Close()
			command := exec.Command("/proc/self/exe", Arg)
			command.Args[0] = "berth"
			command.Env = []string{}
			command.Dir = "/"
			command.Stdout, command.Stderr = logFile, logFile
			command.ExtraFiles = files
			command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := fds.Start(command, config); err != nil {
				return err
			}
			process = command.Process
			s.Go(func() {
				_ = command.Wait()
				s.ReapFDHolders(Arg)
				s.Ended(r.Name, supervisor.Status(command.ProcessState))
			})
			return nil
		},
		Kill:    func(*supervisor.Role) { _ = process.Kill() },
		Release: p.Held.release,
		Resume:  func() bool { return linux.Resume(process.Pid) },
	}, nil
}
