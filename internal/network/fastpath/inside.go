package fastpath

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// A Switch has no capability over the user's namespaces: it cannot enter the network
// namespace of a pod, or read in /proc which files processes with other ids have open.
// So it asks a process inside the node's namespaces (ServeInside). A request is a packet
// with a ticket, a question, and the descriptor of a namespace or process. The answer
// repeats the ticket, because the process that asked earlier may have died.

const (
	// bellsAtOnce is the number of sockets in an answer.
	bellsAtOnce = 16
	ticketLen   = 8
	// insideWithin limits the wait for an answer, because calls of pods wait for it too.
	// After a timeout, questions fail at once for the same time.
	insideWithin = time.Second
	// maxAnswer bounds an answer, in bytes.
	maxAnswer = 64 << 10
)

// question selects the answer that a Switch wants.
type question byte

const (
	// askSockets asks for IPv4 TCP sockets in a network namespace, askSocketsIPv6 for
	// IPv6 ones, and askDiag for a SOCK_DIAG socket.
	askSockets     question = 's'
	askSocketsIPv6 question = '6'
	askDiag        question = 'd'
	// askSockNames asks for the descriptors of a process that are sockets.
	askSockNames question = 'n'
)

// inside sends questions to ServeInside.
type inside struct {
	mu   sync.Mutex
	conn *net.UnixConn
	// avoid is the time until which questions fail at once.
	avoid time.Time
}

// ask sends a question about the descriptor of a namespace or process. It returns the text
// of the answer, which may be empty, and its descriptors, which the caller must close.
func (i *inside) ask(what question, about int) (text []byte, fds []int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	if now.Before(i.avoid) {
		return nil, nil, errors.New("ask inside: a question timed out less than a second ago")
	}
	if err := i.conn.SetDeadline(now.Add(insideWithin)); err != nil {
		return nil, nil, fmt.Errorf("ask inside: %w", err)
	}
	defer func() {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			i.avoid = time.Now().Add(insideWithin)
		}
	}()
	var ticket [ticketLen]byte
	_, _ = rand.Read(ticket[:])
	request := append(ticket[:], byte(what))
	if _, _, err := i.conn.WriteMsgUnix(request, unix.UnixRights(about), nil); err != nil {
		return nil, nil, fmt.Errorf("ask inside: %w", err)
	}
	for {
		answer, rights := make([]byte, ticketLen+maxAnswer), make([]byte, unix.CmsgSpace(bellsAtOnce*4))
		n, rightsLen, _, _, err := i.conn.ReadMsgUnix(answer, rights)
		if err != nil || n < ticketLen {
			return nil, nil, fmt.Errorf("receive from inside: %w", errors.Join(err, io.EOF))
		}
		fds, err := passed(rights[:rightsLen])
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("receive from inside: %w", err)
		case !bytes.Equal(answer[:ticketLen], ticket[:]):
			sock.CloseAll(fds...)
		default:
			return answer[ticketLen:n], fds, nil
		}
	}
}

// passed returns the descriptors of a control message. On an error it closes them.
func passed(rights []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, message := range messages {
		fds, err := unix.ParseUnixRights(&message)
		if err != nil {
			sock.CloseAll(all...)
			return nil, err
		}
		all = append(all, fds...)
	}
	return all, nil
}

// sockets returns new sockets of a network namespace.
func (i *inside) sockets(what question, namespace int) ([]int, error) {
	_, fds, err := i.ask(what, namespace)
	if err == nil && len(fds) == 0 {
		err = fmt.Errorf("get sockets of a pod: %w", unix.ENODATA)
	}
	return fds, err
}

// socketNames returns the result of the function socketNames in the process inside.
func (i *inside) socketNames(process int) ([]byte, error) {
	text, _, err := i.ask(askSockNames, process)
	if err == nil && len(text) == 0 {
		err = fmt.Errorf("look at the sockets of a process: %w", unix.ENODATA)
	}
	return text, err
}

// ServeInside answers a Switch until the connection ends. It runs where it has
// capabilities over pods.
func ServeInside(conn *net.UnixConn) error {
	request, rights := make([]byte, ticketLen+1), make([]byte, unix.CmsgSpace(4))
	for {
		n, rightsLen, _, _, err := conn.ReadMsgUnix(request, rights)
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed) || err == nil && n == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive a question of the fast path: %w", err)
		}
		about, err := passed(rights[:rightsLen])
		if err != nil {
			return fmt.Errorf("receive a question of the fast path: %w", err)
		}
		answer := bytes.Clone(request[:min(n, ticketLen)])
		var made []int
		if n > ticketLen && len(about) == 1 {
			// An empty answer reports any error.
			var text []byte
			switch what := question(request[ticketLen]); what {
			case askSockets, askSocketsIPv6, askDiag:
				made, _ = socketsIn(what, about[0])
			case askSockNames:
				// The Switch's PID namespace has different numbers.
				if number, err := processOf(about[0]); err == nil {
					text, _ = socketNames(number)
				}
			}
			answer = append(answer, text[:min(len(text), maxAnswer)]...)
		}
		_, _, err = conn.WriteMsgUnix(answer, unix.UnixRights(made...), nil)
		sock.CloseAll(append(made, about...)...)
		if err != nil && !errors.Is(err, syscall.EPIPE) {
			return fmt.Errorf("answer the fast path: %w", err)
		}
	}
}

// socketsIn opens sockets in a network namespace: one for askDiag, and otherwise at most
// bellsAtOnce.
func socketsIn(what question, namespace int) (made []int, err error) {
	linux.OnNewThread(func() {
		if err = unix.Setns(namespace, unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter the network namespace of a pod: %w", err)
			return
		}
		if what == askDiag {
			if fd, err := linux.SocketDiagSocket(); err == nil {
				made = append(made, fd)
			}
			return
		}
		domain := unix.AF_INET
		if what == askSocketsIPv6 {
			domain = unix.AF_INET6
		}
		for range bellsAtOnce {
			fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
			if err != nil {
				return // fewer will do
			}
			made = append(made, fd)
		}
	})
	return made, err
}
