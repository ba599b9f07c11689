package servicemap

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// Line is one end of the pair of packet sockets between the teller and the
// told.
type Line struct{ conn *net.UnixConn }

// NewLine uses an inherited end, and closes the file.
func NewLine(file *os.File) (*Line, error) {
	defer file.Close()
	conn, err := linux.PacketConn(file)
	if err != nil {
		return nil, err
	}
	return &Line{conn}, nil
}

// Tell passes a State on, as a memory file: it may be larger than a packet.
func (l *Line) Tell(s *State) error {
	encoded, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the directory: %w", err)
	}
	file, err := linux.MemoryFile("directory", encoded)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, _, err := l.conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(file.Fd())), nil); err != nil {
		return fmt.Errorf("tell the directory: %w", err)
	}
	return nil
}

// Hear waits for a State. io.EOF says that there will be none.
func (l *Line) Hear() (*State, error) {
	rights := make([]byte, unix.CmsgSpace(4))
	n, rightsLen, _, _, err := l.conn.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil || n == 0 {
		return nil, ended("hear the directory", err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rightsLen])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("hear the directory (%d control messages): %w", len(messages), errors.Join(err, unix.EBADMSG))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("hear the directory (%d files): %w", len(fds), errors.Join(err, unix.EBADMSG))
	}
	unix.CloseOnExec(fds[0])
	file := os.NewFile(uintptr(fds[0]), "directory")
	defer file.Close()
	var s State
	// Its offset is shared with whoever wrote it.
	if err := json.NewDecoder(io.NewSectionReader(file, 0, 1<<32)).Decode(&s); err != nil {
		return nil, fmt.Errorf("read the directory: %w", err)
	}
	if s.Policy == nil {
		return nil, errors.New("read the directory: it says nothing of policies")
	}
	return &s, nil
}

// Ask says that this end has just begun and knows nothing, and which pods, by
// their addresses, it has found that nobody answers for any more: their filters
// have lost their last descriptor.
func (l *Line) Ask(lost []netip.Addr) error {
	encoded, err := json.Marshal(lost[:min(len(lost), mostLost)])
	if err != nil {
		return fmt.Errorf("encode pods that are lost: %w", err)
	}
	if _, err := l.conn.Write(encoded); err != nil {
		return fmt.Errorf("ask for the directory: %w", err)
	}
	return nil
}

// AwaitAsker waits until the other end has just begun, and returns which pods it
// names. io.EOF says that there will be none.
func (l *Line) AwaitAsker() (lost []netip.Addr, err error) {
	packet := make([]byte, 64<<10)
	n, err := l.conn.Read(packet)
	if err != nil || n == 0 {
		return nil, ended("wait to be asked for the directory", err)
	}
	if err := json.Unmarshal(packet[:n], &lost); err != nil {
		return nil, fmt.Errorf("hear which pods are lost: %w", err)
	}
	return lost, nil
}

// mostLost is how many addresses are sure to fit into a packet; a node has fewer
// pods.
const mostLost = 1000

// Close ends all waiting.
func (l *Line) Close() error { return l.conn.Close() }

func ended(what string, err error) error {
	if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
		return io.EOF
	}
	return fmt.Errorf("%s: %w", what, err)
}
