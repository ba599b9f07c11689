package layers

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/launch/supervisor"
)

// Name is the name of the role that serves image layers.
const Name = "layers"

// Layers is the role that serves images to the kernel. This process also holds
// the descriptors of the role's mounts. Otherwise the mounts would end with the
// role, and with them the root file systems of pods.
type Layers struct {
	// requests is the role's end of a socket, and Containerd is the other end,
	// where containerd asks for mounts. Both outlive either process.
	requests, Containerd *os.File

	mu   sync.Mutex
	kept []keptMount
	// alive is set while the role runs.
	alive bool
	// abandoned is set when the mounts will not be served again.
	abandoned bool
}

// keptMount holds the descriptors of one mount.
type keptMount struct {
	id    string
	data  json.RawMessage
	files []*os.File
}

// keptMessage is a message between the role and its holder, with descriptors. A
// message from the role with descriptors keeps a mount, and Data belongs to the
// role. A message with only an ID forgets the mount. The holder sends all mounts
// to a new role, and then an empty message.
type keptMessage struct {
	ID   string
	Data json.RawMessage
}

// New returns a Layers without mounts, before its role is started.
func New() (*Layers, error) {
	l := &Layers{}
	var err error
	l.requests, l.Containerd, err = linux.PacketFiles("mounts")
	return l, err
}

// Role returns the role for the program in libexec. env is its environment and
// refused lists the addresses that it must not connect to, for its own requests
// to registries. budget multiplies the limits on images.
func (l *Layers) Role(c *supervisor.Supervisor, libexec string, env []string, refused []netip.Prefix, budget int) *supervisor.Role {
	var process *os.Process
	var keeping sync.WaitGroup
	return &supervisor.Role{
		Name: Name, Path: filepath.Join(libexec, "berth-layers"),
		NotifyFlag: "--notify-fd", Passed: []supervisor.Passed{{Flag: "--requests-fd", File: l.requests}},
		Outside: true,
		Start: func(r *supervisor.Role, files []*os.File) error {
			// Read the last messages of the previous life first.
			keeping.Wait()
			conn, end, err := linux.PacketPair("holder")
			if err != nil {
				return err
			}
			defer end.Close()
			logFile, err := os.OpenFile(r.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			if err != nil {
				conn.Close()
				return fmt.Errorf("open log: %w", err)
			}
			defer logFile.Close()
			command := exec.Command(r.Path, append(r.Arguments(), "--holder-fd", strconv.Itoa(supervisor.NotifyFD+len(files)), "--image-budget", strconv.Itoa(budget))...)
			for _, prefix := range refused {
				command.Args = append(command.Args, "--refuse", prefix.String())
			}
			command.Env = env
			command.Dir = "/"
			command.Stdout, command.Stderr = logFile, logFile
			command.ExtraFiles = append(slices.Clone(files), end)
			command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := command.Start(); err != nil {
				conn.Close()
				return err
			}
			process = command.Process
			l.setAlive(true)
			keeping.Go(func() { l.keep(conn) })
			c.Go(func() {
				_ = command.Wait()
				l.setAlive(false)
				c.Ended(r.Name, supervisor.Status(command.ProcessState))
				l.abandonIfDead()
			})
			return nil
		},
		Kill:   func(*supervisor.Role) { _ = process.Kill() },
		Resume: func() bool { return linux.Resume(process.Pid) },
	}
}

// keep sends the kept mounts to one life of the role, and then receives its
// messages until it ends.
func (l *Layers) keep(conn *net.UnixConn) {
	defer conn.Close()
	l.mu.Lock()
	kept := slices.Clone(l.kept)
	l.mu.Unlock()
	for _, mount := range kept {
		if linux.SendPacket(conn, keptMessage{mount.id, mount.data}, mount.files...) != nil {
			return // the role has ended, and may be started again
		}
	}
	if linux.SendPacket(conn, keptMessage{}) != nil {
		return
	}
	for {
		var message keptMessage
		files, err := linux.ReceivePacket(conn, &message)
		if err != nil {
			linux.CloseAll(files)
			return
		}
		l.take(message, files)
	}
}

// take closes the stored descriptors of a mount, and stores files if there are any.
func (l *Layers) take(message keptMessage, files []*os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = slices.DeleteFunc(l.kept, func(m keptMount) bool {
		if m.id == message.ID {
			linux.CloseAll(m.files)
		}
		return m.id == message.ID
	})
	if len(files) == 0 || l.abandoned {
		linux.CloseAll(files)
		return
	}
	l.kept = append(l.kept, keptMount{message.ID, message.Data, files})
}

func (l *Layers) setAlive(alive bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alive = alive
}

// abandonIfDead ends all mounts if the role has ended and was not started again.
// No signal can end a process that waits for a mount that nobody serves.
func (l *Layers) abandonIfDead() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.alive {
		return
	}
	l.abandoned = true
	for _, mount := range l.kept {
		linux.CloseAll(mount.files)
	}
	l.kept = nil
}
