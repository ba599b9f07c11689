package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// Sandbox is the supervisor's handle to a running set of namespaces.
type Sandbox struct {
	// Listener is the API server's listener inside the sandbox.
	Listener *os.File
	// TUN is the egress device; nil where the host offers no /dev/net/tun.
	TUN *os.File
	// Overlay holds the queues of the device towards the other nodes.
	Overlay []*os.File
	// Socket is the listener at Config.Socket; nil if none is configured.
	Socket *os.File
	// Outside is the listener at Network.ListenOutside; nil if none is configured.
	Outside *os.File

	janitor  *exec.Cmd
	lifeline *os.File
	// init is the process id of the first process inside, as seen here.
	init int
	// gone is closed when the janitor has ended.
	gone    chan struct{}
	control *net.UnixConn
	config  Config
	// program is the file of the program that a further janitor executes. Its path may have
	// another one by then.
	program *os.File

	sending sync.Mutex
	closing sync.Once
	// closed is the error of Close.
	closed error
}

// Start makes the namespaces and returns once init has set them up. The janitor
// inherits the lock file, so that a lock on it lasts until the run's directories
// are gone. Errors name the failed step and, if known, why the host forbids it.
func Start(ctx context.Context, config Config, lock *os.File) (*Sandbox, error) {
	control, initEnd, err := linux.PacketPair("sandbox-control")
	if err != nil {
		return nil, err
	}
	defer initEnd.Close()
	program, err := os.OpenFile(config.Program, unix.O_PATH, 0)
	if err != nil {
		control.Close()
		return nil, explainStart(config.Program, err)
	}
	s := &Sandbox{control: control, config: config}
	if err := s.startJanitor(config, lock, initEnd); err != nil {
		control.Close()
		program.Close()
		return nil, err
	}
	s.program = program
	initEnd.Close()

	stop := context.AfterFunc(ctx, func() { control.Close() })
	defer stop()
	var event Event
	files, err := linux.ReceivePacket(control, &event)
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("set up the sandbox: its first process ended early%s", lastWords(config.Log))
	case err != nil:
		err = fmt.Errorf("set up the sandbox: %w", err)
	case event.Kind == Failed:
		err = fmt.Errorf("set up the sandbox: %s", event.Error)
	case event.Kind != Ready || len(files) < event.files():
		err = fmt.Errorf("set up the sandbox: unexpected first event %q with %d files", event.Kind, len(files))
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.Listener, s.Overlay = files[0], files[1:1+event.Queues]
	rest := files[1+event.Queues:]
	if event.Socket {
		s.Socket, rest = rest[0], rest[1:]
	}
	if event.Outside {
		s.Outside, rest = rest[0], rest[1:]
	}
	if len(rest) > 0 {
		s.TUN = rest[0]
	}
	s.init = event.PID
	if err := settleGroups(config.Cgroup, s.janitor.Process.Pid, s.init); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// startJanitor starts the janitor and gives its user namespace its id maps.
func (s *Sandbox) startJanitor(config Config, lock, initEnd *os.File) error {
	encoded, err := json.Marshal(config)
	if err != nil {
		return err
	}
	configFile, err := linux.MemoryFile("sandbox-config", encoded)
	if err != nil {
		return err
	}
	defer configFile.Close()
	readEnd, writeEnd, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make lifeline: %w", err)
	}
	defer readEnd.Close()
	log, err := openLog(config.Log)
	if err != nil {
		writeEnd.Close()
		return err
	}
	defer log.Close()

	// If the janitor is killed, init becomes a child of this process, which then
	// waits for the end of everything inside.
	if err := linux.BecomeSubreaper(); err != nil {
		writeEnd.Close()
		return err
	}
	janitor := exec.Command(config.Program, JanitorArg)
	janitor.Args[0] = "berth"
	janitor.Dir = "/"
	janitor.Env = []string{}
	janitor.Stdout, janitor.Stderr = log, log
	janitor.ExtraFiles = []*os.File{readEnd, configFile, initEnd, lock}
	if s.program != nil {
		janitor.ExtraFiles = append(janitor.ExtraFiles, s.program)
		janitor.Path = "/proc/self/fd/" + strconv.Itoa(programFD)
	}
	janitor.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER,
		// A separate session: the supervisor handles Ctrl-C on the terminal and
		// Slurm's signals to a process group.
		Setsid: true,
	}
	if config.Cgroup != "" {
		// The root of a cgroup namespace is the group of the process that makes
		// it.
		group, err := os.Open(config.Cgroup)
		if err != nil {
			writeEnd.Close()
			return fmt.Errorf("open the run's control group: %w", err)
		}
		defer group.Close()
		janitor.SysProcAttr.UseCgroupFD, janitor.SysProcAttr.CgroupFD = true, int(group.Fd())
	}
	if config.IDMap.oneUID() {
		// The maps are written before the program is executed, so it has its
		// capabilities even where no_new_privs forbids gaining any.
		janitor.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		janitor.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
		janitor.Env = []string{mappedEnv + "=1"}
	}
	if err := janitor.Start(); err != nil {
		writeEnd.Close()
		return explainStart(config.Program, err)
	}
	s.janitor, s.lifeline, s.gone = janitor, writeEnd, make(chan struct{})
	go KeepRunning(janitor.Process.Pid, s.gone)
	if config.IDMap.oneUID() {
		return nil
	}
	if err := writeIDMaps(janitor.Process.Pid, config.IDMap); err != nil {
		return errors.Join(err, s.Close())
	}
	if _, err := writeEnd.Write([]byte{1}); err != nil {
		return errors.Join(fmt.Errorf("tell the janitor to go on: %w", err), s.Close())
	}
	return nil
}

// explainStart returns the error of a janitor that did not start: because of its program, or
// because the host forbids the user namespace.
func explainStart(program string, err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOEXEC) || errors.Is(err, unix.EACCES) && unix.Access(program, unix.X_OK) != nil {
		return fmt.Errorf("start %s: %w; unpack the whole archive, bin/ and libexec/ side by side", program, err)
	}
	return fmt.Errorf("make a user namespace: %w; 'berth doctor' lists what this host lacks", err)
}

// Run asks init to start a command. Events reports the result and the command's
// end.
func (s *Sandbox) Run(command Command) error {
	files := command.Files
	if command.Stdout != nil {
		files = append([]*os.File{command.Stdout}, files...)
		command.HasStdout = true
	}
	return s.send(request{Start: &command}, files...)
}

// Signal sends a signal to a running command. It does nothing if the command has
// ended.
func (s *Sandbox) Signal(name string, signal syscall.Signal) error {
	return s.send(request{Signal: &signalling{Name: name, Signal: signal}})
}

func (s *Sandbox) send(message request, files ...*os.File) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := linux.SendPacket(s.control, message, files...); err != nil {
		return fmt.Errorf("ask the sandbox: %w", err)
	}
	return nil
}

// Events calls handle for each event until the sandbox ends, which is an
// error unless Close was called. One goroutine at a time may call it.
func (s *Sandbox) Events(handle func(Event)) error {
	for {
		var event Event
		files, err := linux.ReceivePacket(s.control, &event)
		linux.CloseAll(files)
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, io.EOF):
			who := "first process"
			if linux.ProcessState(s.janitor.Process.Pid) == linux.ProcessZombie {
				who = "janitor"
			}
			return fmt.Errorf("the sandbox ended: its %s was killed%s", who, lastWords(s.config.Log))
		case err != nil:
			return fmt.Errorf("read from the sandbox: %w", err)
		}
		handle(event)
	}
}

// Close ends every process inside, removes the run's directories and returns
// when all of it is done. It can be called twice.
func (s *Sandbox) Close() error {
	s.closing.Do(func() {
		s.control.Close()
		if s.Listener != nil {
			s.Listener.Close()
		}
		linux.CloseAll(s.Overlay)
		if s.Socket != nil {
			s.Socket.Close()
		}
		if s.Outside != nil {
			s.Outside.Close()
		}
		if s.TUN != nil {
			s.TUN.Close()
		}
		s.lifeline.Close()
		linux.Resume(s.janitor.Process.Pid)
		err := s.janitor.Wait()
		close(s.gone)
		if err != nil {
			// The janitor itself was killed, and init dies with it. Another
			// janitor removes the directories once init has ended.
			err = nil
			if s.init > 0 {
				err = linux.AwaitChild(s.init)
			}
			again := Sandbox{config: Config{Program: s.config.Program, IDMap: s.config.IDMap, Remove: s.config.Remove}, program: s.program}
			s.closed = errors.Join(err, again.remove())
		}
		s.program.Close()
	})
	return s.closed
}

// Remove deletes directories with files of subordinate uids, which a run leaves
// if all its processes are killed at once. program is the path of berth-sandbox.
func Remove(program string, ids IDMap, directories []string) error {
	s := Sandbox{config: Config{Program: program, IDMap: ids, Remove: directories}}
	return s.remove()
}

// remove deletes the directories of the configuration with a janitor that starts no init.
func (s *Sandbox) remove() error {
	if len(s.config.Remove) == 0 {
		return nil
	}
	control, initEnd, err := linux.PacketPair("sandbox-control")
	if err != nil {
		return err
	}
	control.Close()
	initEnd.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	if err := s.startJanitor(s.config, null, null); err != nil {
		return err
	}
	s.lifeline.Close()
	err = s.janitor.Wait()
	close(s.gone)
	if err != nil {
		return fmt.Errorf("remove %q: %w", s.config.Remove, err)
	}
	return nil
}

// openLog opens a log to append to it. An empty path selects the null device.
func openLog(path string) (*os.File, error) {
	if path == "" {
		path = os.DevNull
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return file, nil
}

// lastWords returns the last line of a log as a suffix for an error.
func lastWords(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line := lastLine(content)
	if line == "" {
		return ""
	}
	return ": " + line
}
