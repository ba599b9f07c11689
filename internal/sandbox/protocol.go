package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxMessage bounds one message between the supervisor and init. A command
// line is the largest thing in it.
const maxMessage = 64 << 10

// maxFiles bounds the descriptors beside one message.
const maxFiles = 16

// request is what the supervisor asks of init.
type request struct {
	Start  *Command    `json:",omitempty"`
	Signal *signalling `json:",omitempty"`
}

type signalling struct {
	Name   string
	Signal syscall.Signal
}

// Event is what init reports.
type Event struct {
	Kind EventKind
	// Name is the command's; empty for Ready and Failed.
	Name string
	// PID is the process id inside, with Started; that of init outside,
	// with Ready.
	PID int
	// Queues is how many of the files beside Ready are queues of the mesh.
	Queues int
	// Status is set with Exited.
	Status Status
	// Error is set with Failed.
	Error string
}

// EventKind says what an Event reports.
type EventKind string

// The kinds of events.
const (
	// Ready: the namespaces are set up. The files beside it are the API
	// listener, the queues of the mesh and, where a TUN device could be opened,
	// the egress.
	Ready EventKind = "ready"
	// Failed: setting up, or starting the named command, did not work.
	Failed EventKind = "failed"
	// Started: the named command runs.
	Started EventKind = "started"
	// Exited: the named command ended.
	Exited EventKind = "exited"
	// Stopped: the named command had been stopped by a signal (SIGSTOP), and
	// was continued.
	Stopped EventKind = "stopped"
)

// Status is how a process ended.
type Status struct {
	Code   int
	Signal syscall.Signal
	// MaxRSS is the peak resident memory in bytes, children included.
	MaxRSS int64
}

func (s Status) String() string {
	if s.Signal != 0 {
		return fmt.Sprintf("killed by signal %d (%s)", int(s.Signal), s.Signal)
	}
	return fmt.Sprintf("exit code %d", s.Code)
}

// send writes one message with descriptors beside it.
func send(conn *net.UnixConn, message any, files ...*os.File) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(data) > maxMessage {
		return fmt.Errorf("message of %d bytes is longer than %d", len(data), maxMessage)
	}
	var rights []byte
	if len(files) > 0 {
		fds, err := descriptors(files)
		if err != nil {
			return err
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(data, rights, nil)
	runtime.KeepAlive(files)
	return err
}

// descriptors returns the files' numbers without File.Fd, which would switch a
// non-blocking descriptor to blocking, for every process that shares it.
func descriptors(files []*os.File) ([]int, error) {
	var fds []int
	for _, file := range files {
		raw, err := file.SyscallConn()
		if err != nil {
			return nil, fmt.Errorf("pass %s: %w", file.Name(), err)
		}
		if err := raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) }); err != nil {
			return nil, fmt.Errorf("pass %s: %w", file.Name(), err)
		}
	}
	return fds, nil
}

// receive reads one message; io.EOF when the other end is gone.
func receive(conn *net.UnixConn, message any) ([]*os.File, error) {
	data := make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, _, _, err := conn.ReadMsgUnix(data, oob)
	if err != nil {
		if errors.Is(err, unix.ECONNRESET) {
			return nil, io.EOF
		}
		return nil, err
	}
	if n == 0 && oobn == 0 {
		return nil, io.EOF
	}
	files, err := parseRights(oob[:oobn])
	if err != nil {
		return nil, err
	}
	return files, json.Unmarshal(data[:n], message)
}

func parseRights(oob []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse control message: %w", err)
	}
	var files []*os.File
	for _, message := range messages {
		fds, err := unix.ParseUnixRights(&message)
		if err != nil {
			return nil, fmt.Errorf("parse passed descriptors: %w", err)
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}
