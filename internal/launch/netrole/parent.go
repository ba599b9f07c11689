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
	// Places and Sockets are for the network between the nodes. Places is nil on a
	// single node.
	Places    *hostnet.Places
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
	for _, port := range p.Published {
		config.Published = append(config.Published, netip.AddrPortFrom(p.Plan.Addresses.Node, port.Node))
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
			fds, changes, err := p.files(&config)
			if err != nil {
				return err
			}
			if changes != nil {
				defer changes.Close()
			}
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

// files returns the files that the role inherits, and sets what the configuration says of
// the network between the nodes now. The role reads later changes from a pipe, which is nil
// on a single node.
func (p Parent) files(config *config) (fds linux.FDTable, changes *os.File, err error) {
	fds.Add(fdTUN, p.Box.TUN)
	if p.Places != nil {
		if config.Overlay, changes, err = p.Places.Connect(); err != nil {
			return fds, nil, err
		}
		fds.Add(fdQueue, p.Box.Overlay...)
		fds.Add(fdPackets, p.Sockets.Packets...)
		fds.Add(fdStreams, p.Sockets.Streams)
		fds.Add(fdChanges, changes)
	}
	for _, port := range p.Published {
		fds.Add(fdPublished, port.Listener)
	}
	if p.Held != nil {
		config.Switch = p.Held.configOf(config.Overlay.Switches)
		p.Held.addTo(&fds)
	}
	return fds, changes, nil
}
