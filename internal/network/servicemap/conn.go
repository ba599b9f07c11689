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

// Conn is one end of the pair of packet sockets between sender and receiver.
type Conn struct{ conn *net.UnixConn }

// NewConn returns a Conn that uses a duplicate of file, and closes file.
func NewConn(file *os.File) (*Conn, error) {
	defer file.Close()
	conn, err := linux.PacketConn(file)
	if err != nil {
		return nil, err
	}
	return &Conn{conn}, nil
}

// Send passes a State as a memory file, because it may be larger than a packet.
func (c *Conn) Send(s *State) error {
	encoded, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the service map: %w", err)
	}
	file, err := linux.MemoryFile("service-map", encoded)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, _, err := c.conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(file.Fd())), nil); err != nil {
		return fmt.Errorf("send the service map: %w", err)
	}
	return nil
}

// Receive waits for a State. It returns io.EOF after the other end has closed, or after
// Close.
func (c *Conn) Receive() (*State, error) {
	rights := make([]byte, unix.CmsgSpace(4))
	n, rightsLen, _, _, err := c.conn.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil || n == 0 {
		return nil, ended("receive the service map", err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rightsLen])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("receive the service map (%d control messages): %w", len(messages), errors.Join(err, unix.EBADMSG))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("receive the service map (%d files): %w", len(fds), errors.Join(err, unix.EBADMSG))
	}
	unix.CloseOnExec(fds[0])
	file := os.NewFile(uintptr(fds[0]), "service-map")
	defer file.Close()
	var s State
	// The file's offset is shared with the sender.
	if err := json.NewDecoder(io.NewSectionReader(file, 0, 1<<32)).Decode(&s); err != nil {
		return nil, fmt.Errorf("read the service map: %w", err)
	}
	if s.Policy == nil {
		return nil, errors.New("read the service map: it has no policies")
	}
	return &s, nil
}

// Request asks the other end for a State, when this end has just started. lost holds the
// addresses of pods whose calls nobody can answer any more, because the last descriptor of
// their filters was closed. Request sends at most maxLost of them.
func (c *Conn) Request(lost []netip.Addr) error {
	encoded, err := json.Marshal(lost[:min(len(lost), maxLost)])
	if err != nil {
		return fmt.Errorf("encode the lost pods: %w", err)
	}
	if _, err := c.conn.Write(encoded); err != nil {
		return fmt.Errorf("request the service map: %w", err)
	}
	return nil
}

// AwaitRequest waits for a Request and returns its lost pods. It returns io.EOF after
// the other end has closed.
func (c *Conn) AwaitRequest() (lost []netip.Addr, err error) {
	packet := make([]byte, 64<<10)
	n, err := c.conn.Read(packet)
	if err != nil || n == 0 {
		return nil, ended("await a request for the service map", err)
	}
	if err := json.Unmarshal(packet[:n], &lost); err != nil {
		return nil, fmt.Errorf("read the lost pods: %w", err)
	}
	return lost, nil
}

// maxLost is the number of addresses that surely fit into a packet. A node has
// fewer pods.
const maxLost = 1000

// Close ends all waiting calls.
func (c *Conn) Close() error { return c.conn.Close() }

// ended returns io.EOF if the error of a read means that the connection has ended.
func ended(what string, err error) error {
	if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
		return io.EOF
	}
	return fmt.Errorf("%s: %w", what, err)
}
