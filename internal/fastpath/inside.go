package fastpath

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/linux"
)

// A Switch has no capability over what the user owns: it cannot enter the
// network namespace of a pod, nor read in /proc what processes under other ids
// have open. So it asks a process that can, inside the node's namespaces
// (ServeInside). A request is a packet: a number that the answer repeats, since
// an answer may be to a process that has died, what is asked, and a path. Beside
// it is a descriptor, of a namespace or of a process.

const (
	bellsAtOnce = 16
	ticketLen   = 8
	// insideWithin is how long an answer may take, and for how long nobody asks
	// again after it has not come: calls of pods wait for it.
	insideWithin = time.Second
	// maxAnswer bounds an answer, in bytes.
	maxAnswer = 64 << 10
)

// question is what is asked.
type question byte

const (
	// askSockets: for TCP sockets in a network namespace, askSockets6 for those of
	// IPv6, askDiag for one that tells of those there.
	askSockets  question = 's'
	askSockets6 question = '6'
	askDiag     question = 'd'
	// askList: for the names in a directory of a process, askRead for a file's
	// content, askSockNames for what its descriptors that are sockets are.
	askList      question = 'l'
	askRead      question = 'r'
	askSockNames question = 'n'
)

// inside asks.
type inside struct {
	mu    sync.Mutex
	conn  *net.UnixConn
	avoid time.Time
}

// ask returns the answer, empty where there is none, and descriptors beside it.
func (i *inside) ask(what question, path string, about int) (text []byte, fds []int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	if now.Before(i.avoid) {
		return nil, nil, errors.New("ask inside: there was no answer just now")
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
	request := append(append(ticket[:], byte(what)), path...)
	if _, _, err := i.conn.WriteMsgUnix(request, unix.UnixRights(about), nil); err != nil {
		return nil, nil, fmt.Errorf("ask inside: %w", err)
	}
	for {
		answer, rights := make([]byte, ticketLen+maxAnswer), make([]byte, unix.CmsgSpace(bellsAtOnce*4))
		n, rightsLen, _, _, err := i.conn.ReadMsgUnix(answer, rights)
		if err != nil || n < ticketLen {
			return nil, nil, fmt.Errorf("hear from inside: %w", errors.Join(err, io.EOF))
		}
		fds, err := passed(rights[:rightsLen])
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("hear from inside: %w", err)
		case !bytes.Equal(answer[:ticketLen], ticket[:]):
			closeAll(fds...)
		default:
			return answer[ticketLen:n], fds, nil
		}
	}
}

// sockets returns new sockets of a network namespace.
func (i *inside) sockets(what question, namespace int) ([]int, error) {
	_, fds, err := i.ask(what, "", namespace)
	if err == nil && len(fds) == 0 {
		err = fmt.Errorf("get sockets of a pod: %w", unix.ENODATA)
	}
	return fds, err
}

// look asks about a process, or a thread.
func (i *inside) look(what question, path string, process int) ([]byte, error) {
	text, _, err := i.ask(what, path, process)
	if err == nil && len(text) == 0 {
		err = fmt.Errorf("look at %s of a process: %w", path, unix.ENODATA)
	}
	return text, err
}

// ServeInside answers a Switch until the connection ends. It runs where it has
// capabilities over pods.
func ServeInside(conn *net.UnixConn) error {
	request, rights := make([]byte, ticketLen+1+len("fdinfo/")+20), make([]byte, unix.CmsgSpace(4))
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
			// Nothing says it all.
			var text []byte
			switch what, path := question(request[ticketLen]), string(request[ticketLen+1:n]); what {
			case askSockets, askSockets6, askDiag:
				made, _ = socketsIn(what, about[0])
			default:
				text, _ = lookAt(what, path, about[0])
			}
			answer = append(answer, text[:min(len(text), maxAnswer)]...)
		}
		_, _, err = conn.WriteMsgUnix(answer, unix.UnixRights(made...), nil)
		closeAll(append(made, about...)...)
		if err != nil && !errors.Is(err, syscall.EPIPE) {
			return fmt.Errorf("answer the fast path: %w", err)
		}
	}
}

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
		if what == askSockets6 {
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

// lookAt answers about a process in /proc, which numbers it otherwise than the
// Switch's does.
func lookAt(what question, path string, process int) ([]byte, error) {
	number, err := processOf(process)
	if err != nil {
		return nil, err
	}
	path = "/proc/" + strconv.Itoa(number) + "/" + path
	switch what {
	case askRead:
		return os.ReadFile(path)
	case askList:
		names, err := namesIn(path)
		return []byte(strings.Join(names, " ")), err
	case askSockNames:
		return socketNames(path)
	}
	return nil, unix.EINVAL
}

// processOf returns the number, in our PID namespace, of the process or thread
// that a descriptor stands for.
func processOf(pidfd int) (int, error) {
	info, err := readSmall("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(info) {
		if text, found := bytes.CutPrefix(line, []byte("Pid:")); found {
			number, err := strconv.Atoi(string(bytes.TrimSpace(text)))
			if err == nil && number > 0 {
				return number, nil
			}
		}
	}
	return 0, fmt.Errorf("find a process: %w", unix.ESRCH)
}

func namesIn(dir string) ([]string, error) {
	opened, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	return opened.Readdirnames(-1)
}

// socketNames lists the sockets in a directory of descriptors, a number and the
// kernel's name for the socket per line.
func socketNames(dir string) ([]byte, error) {
	names, err := namesIn(dir)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for _, name := range names {
		if target, err := os.Readlink(dir + "/" + name); err == nil && strings.HasPrefix(target, "socket:") {
			fmt.Fprintf(&text, "%s %s\n", name, target)
		}
	}
	return text.Bytes(), nil
}
