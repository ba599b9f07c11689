package fastpath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// TestMemoryIsNotWrittenAfterCallEnds has signals interrupt calls whose answer
// is an address.
func TestMemoryIsNotWrittenAfterCallEnds(t *testing.T) {
	for _, handler := range []string{"restart", "end"} {
		t.Run(handler, func(t *testing.T) {
			_, client, server := pair(t, labConfig{})
			const n = 300
			serving := server.serve("acceptinrain", "5000", fmt.Sprint(n+1), handler)
			client.run("many", server.at(5000), fmt.Sprint(n))
			client.run("namesinrain", server.at(5000), "10000", handler)
			serving.wait()
			client.counts(t, countConnected, n+1)
		})
	}
}

// TestBufferIsNotExceededByRepeatedCall has signals repeat calls after their answer was
// written. The second attempt reads the length that the first one wrote.
func TestBufferIsNotExceededByRepeatedCall(t *testing.T) {
	_, client, server := pair(t, labConfig{old: true})
	const n, space = 300, "4"
	serving := server.serve("acceptinrain", "5000", fmt.Sprint(n+1), "restart", space)
	client.run("many", server.at(5000), fmt.Sprint(n))
	client.run("namesinrain", server.at(5000), "3000", "restart", space)
	serving.wait()
	client.counts(t, countConnected, n+1)
}

func TestSignalDuringAccept(t *testing.T) {
	for _, handler := range []string{"restart", "end", "restart limited"} {
		t.Run(handler, func(t *testing.T) {
			_, client, server := pair(t, labConfig{})
			serving := server.serve("signalled", "5000", handler)
			client.run("ask", server.at(5000))
			serving.wait()
		})
	}
}

func TestSignalDuringConnect(t *testing.T) {
	for _, handler := range []string{"restart", "end"} {
		t.Run(handler, func(t *testing.T) {
			l, client, server := pair(t, labConfig{})
			serving := server.serve("serve", "5000")
			// It takes connections, and answers none.
			other := l.hosts[1].process.Process
			if err := other.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer other.Signal(syscall.SIGCONT)
			asking := client.serve("connectinrain", server.at(5000), handler)
			if err := other.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			asking.wait()
			serving.wait()
			client.counts(t, countInterrupted, 1)
		})
	}
}

// rain sends signals to this thread, and counts the handled ones. Each of them restarts
// or ends a system call.
func rain(handler string) (drops *atomic.Int64, err error) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unix.SIGUSR1)
	if handler == "end" {
		const restarts = 0x10000000 // SA_RESTART
		var action struct{ handler, flags, restorer, mask uint64 }
		_, _, errno1 := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGUSR1), 0, uintptr(unsafe.Pointer(&action)), 8, 0, 0)
		action.flags &^= restarts
		_, _, errno2 := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGUSR1), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
		if errno1 != 0 || errno2 != 0 {
			return nil, errors.Join(errno1, errno2)
		}
	}
	drops = &atomic.Int64{}
	go func() {
		for range caught {
			drops.Add(1)
		}
	}()
	self, thread := os.Getpid(), unix.Gettid()
	go func() {
		for {
			_ = unix.Tgkill(self, thread, unix.SIGUSR1)
			_ = unix.Nanosleep(&unix.Timespec{Nsec: 50_000}, nil)
		}
	}()
	return drops, nil
}

// out is memory that a system call is to write an address to, and then its length. The
// program says that it has space for a part of the address only, and uses the rest itself.
type out struct {
	memory []byte
	space  int
}

const outSpace = unix.SizeofSockaddrInet4

// newOut returns memory with space for a whole address, or as much as the argument says.
func newOut(space []string) (o out, err error) {
	o.space = outSpace
	if len(space) > 0 {
		if o.space, err = strconv.Atoi(space[0]); err != nil {
			return out{}, err
		}
	}
	o.memory, err = unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	copy(o.memory, bytes.Repeat([]byte{0xaa}, outSpace))
	return o, err
}

func (o out) call(number uintptr, fd int) (int, unix.Errno) {
	binary.NativeEndian.PutUint32(o.memory[outSpace:], uint32(o.space))
	got, _, errno := unix.Syscall(number, uintptr(fd), uintptr(unsafe.Pointer(&o.memory[0])), uintptr(unsafe.Pointer(&o.memory[outSpace])))
	return int(got), errno
}

// unwritten checks that the call has written only where it may, and then uses the memory
// otherwise for a while.
func (o out) unwritten() error {
	mine := bytes.Repeat([]byte{0xaa}, outSpace+4)
	if got := o.memory[o.space:outSpace]; !bytes.Equal(got, mine[o.space:outSpace]) {
		return fmt.Errorf("% x was written behind the buffer of %d bytes", got, o.space)
	}
	copy(o.memory, mine)
	for range 5000 {
		if got := o.memory[:len(mine)]; !bytes.Equal(got, mine) {
			return fmt.Errorf("% x was written after the call", got)
		}
	}
	return nil
}

// namesInRain asks for the name of its peer N times, for the command namesinrain
// ADDRESS N restart|end [SPACE].
func namesInRain(args []string) error {
	fd, err1 := switchedSocket(args[0])
	n, err2 := strconv.Atoi(args[1])
	o, err3 := newOut(args[3:])
	_, err4 := rain(args[2])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	for range n {
		_, errno := o.call(unix.SYS_GETPEERNAME, fd)
		if errno != 0 && (errno != unix.EINTR || args[2] == "restart") {
			return fmt.Errorf("getpeername: %w", errno)
		}
		if err := o.unwritten(); err != nil {
			return fmt.Errorf("getpeername (%w): %w", errno, err)
		}
	}
	return unix.Close(fd)
}

// acceptInRain echoes N connections one after the other, for the command acceptinrain
// PORT N restart|end [SPACE].
func acceptInRain(args []string) error {
	listener, err1 := listenAt(args[0])
	n, err2 := strconv.Atoi(args[1])
	o, err3 := newOut(args[3:])
	_, err4 := rain(args[2])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	fmt.Println("ready")
	for n > 0 {
		fd, errno := o.call(unix.SYS_ACCEPT, listener)
		if errno != 0 && (errno != unix.EINTR || args[2] == "restart") {
			return fmt.Errorf("accept: %w", errno)
		}
		if err := o.unwritten(); err != nil {
			return fmt.Errorf("accept (%w): %w", errno, err)
		}
		if errno == 0 {
			n--
			if err := echoInRain(fd); err != nil {
				return err
			}
		}
	}
	return nil
}

// echoInRain echoes pieces that a socket takes at once.
func echoInRain(fd int) error {
	defer unix.Close(fd)
	b := make([]byte, 4096)
	for {
		n, err := unix.Read(fd, b)
		if err == unix.EINTR {
			continue
		}
		if n == 0 || err != nil {
			return err
		}
		if _, err := unix.Write(fd, b[:n]); err != nil {
			return err
		}
	}
}

func listenAt(port string) (int, error) {
	listener, err := newSocket(unix.AF_INET, 0)
	if err != nil {
		return -1, err
	}
	return listener, errors.Join(
		unix.Bind(listener, sockaddr("0.0.0.0:"+port, unix.AF_INET)),
		unix.Listen(listener, 128))
}

// signalled PORT restart|end|restart limited: its accept is ended by a signal, or
// goes on while signals are handled. With a limit to its time it is ended.
func signalled(args []string) error {
	listener, err := listenAt(args[0])
	if err != nil {
		return err
	}
	if args[1] == "restart limited" {
		limit := unix.NsecToTimeval(time.Hour.Nanoseconds())
		if err := unix.SetsockoptTimeval(listener, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
			return err
		}
	}
	drops, err := rain(args[1])
	if err != nil {
		return err
	}
	if args[1] != "restart" {
		if _, _, err := unix.Accept(listener); err != unix.EINTR {
			return fmt.Errorf("accept: %w, not EINTR", err)
		}
	}
	go func() {
		// Some may come before the call, or before it is received.
		for enough := drops.Load() + 10; drops.Load() < enough; {
			_, _ = unix.Poll(nil, 1)
		}
		fmt.Println("ready")
	}()
	for {
		fd, _, err := unix.Accept(listener)
		if err == nil {
			return echoInRain(fd)
		}
		if err != unix.EINTR || args[1] == "restart" {
			return fmt.Errorf("accept: %w", err)
		}
	}
}

// connectInRain connects while signals arrive, for the command connectinrain ADDRESS
// restart|end.
func connectInRain(args []string) error {
	fd, err1 := newSocket(familyOf(args[0]), 0)
	_, err2 := rain(args[1])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	errno := unix.EINTR
	// The call may have ended before it was received, and nothing has begun.
	for errno == unix.EINTR && sock.Option(fd, unix.IPPROTO_TCP, unix.TCP_INFO)&0xff == sock.Closed {
		errno = sock.Connect(fd, rawInet(args[0], 0))
	}
	if errno != map[string]unix.Errno{"end": unix.EINTR}[args[1]] {
		return fmt.Errorf("connect: %w", errno)
	}
	if err := await(fd, unix.POLLOUT); err != nil {
		return err
	}
	fmt.Println("ready")
	return exchange(fd, -1, false)
}
