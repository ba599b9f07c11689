package fastpath

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// Programs for single cases.

// refused ADDRESS [nonblock]: nobody listens there.
func refused(args []string) error {
	flags := 0
	if options(args[1:]).has("nonblock") {
		flags = unix.SOCK_NONBLOCK
	}
	fd, err := newSocket(familyOf(args[0]), flags)
	if err != nil {
		return err
	}
	err = unix.Connect(fd, sockaddr(args[0], familyOf(args[0])))
	if errors.Is(err, unix.EINPROGRESS) && flags != 0 {
		if err := await(fd, unix.POLLOUT); err != nil {
			return err
		}
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return err
		}
		fmt.Println(unix.Errno(code))
		return nil
	}
	fmt.Println(err)
	return nil
}

// twice ADDRESS: a refused socket is used again.
func twice(args []string) error {
	fd, err := newSocket(familyOf(args[0]), 0)
	if err != nil {
		return err
	}
	if err := failed(unix.Connect(fd, sockaddr(args[0], familyOf(args[0]))), unix.ECONNREFUSED); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if err := unix.Connect(fd, sockaddr(args[1], familyOf(args[1]))); err != nil {
		return fmt.Errorf("connect again: %w", err)
	}
	text, err := describe(fd)
	fmt.Println(text)
	return errors.Join(err, exchange(fd, -1, false))
}

// relisten ADDRESS N: a server accepts a connection from the same program, closes both and
// its listener, and listens again at the same port, N times. The port would be in use if
// anything still held the listener.
func relisten(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	for range n {
		if err := relistenOnce(familyOf(args[0]), sockaddr(args[0], familyOf(args[0]))); err != nil {
			return err
		}
	}
	fmt.Println("done")
	return nil
}

func relistenOnce(family int, at unix.Sockaddr) error {
	listener, err := newSocket(family, 0)
	if err != nil {
		return err
	}
	defer unix.Close(listener)
	if err := unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err := unix.Bind(listener, at); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if err := unix.Listen(listener, 1); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	client, err := newSocket(family, 0)
	if err != nil {
		return err
	}
	defer unix.Close(client)
	if err := unix.Connect(client, at); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	accepted, _, err := unix.Accept(listener)
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	return unix.Close(accepted)
}

// duplicate ADDRESS: the duplicate of a socket is connected with it.
func duplicate(args []string) error {
	fd, err := newSocket(familyOf(args[0]), 0)
	if err != nil {
		return err
	}
	other, err := unix.Dup(fd)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, sockaddr(args[0], familyOf(args[0]))); err != nil {
		return err
	}
	text, err := describe(other)
	if err != nil {
		return err
	}
	fmt.Println(text)
	return exchange(other, -1, false)
}

// forked ADDRESS: a child has the connected socket too, and uses it.
func forked(args []string) error {
	fd, err := newSocket(familyOf(args[0]), 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, sockaddr(args[0], familyOf(args[0]))); err != nil {
		return err
	}
	return inChild(fd)
}

// withArgs returns the environment for a child that runs the program args[0].
func withArgs(args ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "ARGS=") })
	return append(env, "ARGS="+strings.Join(args, "\x1f"))
}

// succeeded waits for a child.
func succeeded(child *os.Process) error {
	state, err := child.Wait()
	if err == nil && !state.Success() {
		err = errors.New(state.String())
	}
	if err != nil {
		return fmt.Errorf("child: %w", err)
	}
	return nil
}

// inChild has a child use a connection.
func inChild(fd int) error {
	child, err := os.StartProcess("/proc/self/exe", []string{"program"}, &os.ProcAttr{
		Env:   withArgs("half", "fd=3"),
		Files: []*os.File{nil, os.Stdout, os.Stderr, os.NewFile(uintptr(fd), "socket")},
	})
	if err != nil {
		return err
	}
	return succeeded(child)
}

// sharedBefore ADDRESS: a child has the socket from before it is connected,
// under the same number, and uses it then.
func sharedBefore(args []string) error {
	fd, err := newSocket(familyOf(args[0]), 0)
	if err != nil {
		return err
	}
	reading, writing, err := os.Pipe()
	if err != nil {
		return err
	}
	files := make([]*os.File, fd+1)
	files[0], files[1], files[2] = reading, os.Stdout, os.Stderr
	files[fd] = os.NewFile(uintptr(fd), "socket")
	child, err := os.StartProcess("/proc/self/exe", []string{"program"}, &os.ProcAttr{
		Env: withArgs("half", fmt.Sprintf("fd=%d", fd), "stdin"), Files: files,
	})
	if err != nil {
		return err
	}
	reading.Close()
	if err := unix.Connect(fd, sockaddr(args[0], familyOf(args[0]))); err != nil {
		return err
	}
	writing.Close()
	return succeeded(child)
}

// half ADDRESS|fd=N: ends its own side first, and still receives.
func half(args []string) error {
	o := options(args)
	fd := o.value("fd", -1)
	if o.has("stdin") {
		_, _ = io.ReadAll(os.Stdin)
	}
	if fd < 0 {
		var err error
		if fd, err = newSocket(familyOf(args[0]), 0); err != nil {
			return err
		}
		if err := unix.Connect(fd, sockaddr(args[0], familyOf(args[0]))); err != nil {
			return err
		}
	}
	text, err := describe(fd)
	if err != nil {
		return err
	}
	fmt.Println(text)
	if _, err := unix.Write(fd, []byte("last words")); err != nil {
		return err
	}
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		return err
	}
	got, err := io.ReadAll(os.NewFile(uintptr(fd), "socket"))
	if err == nil && string(got) != "last words" {
		err = fmt.Errorf("received %q", got)
	}
	return err
}

func udpServe(args []string) error {
	conn, err := net.ListenPacket("udp4", ":"+args[0])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	b := make([]byte, 100)
	n, from, err := conn.ReadFrom(b)
	if err != nil {
		return err
	}
	_, err = conn.WriteTo(b[:n], from)
	return err
}

// udp ADDRESS: datagrams on a connected socket.
func udp(args []string) error {
	conn, err := net.Dial("udp", args[0])
	if err != nil {
		return err
	}
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	b := make([]byte, 100)
	n, err := conn.Read(b)
	if err == nil && string(b[:n]) != "hello" {
		err = fmt.Errorf("received %q", b[:n])
	}
	return err
}

// interrupted PORT: signals interrupt its accept all the time.
func interrupted(args []string) error {
	self := os.Getpid()
	thread := unix.Gettid()
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unix.SIGUSR1)
	go func() {
		for {
			_ = unix.Tgkill(self, thread, unix.SIGUSR1)
			_, _ = unix.Poll(nil, 1)
		}
	}()
	return serve(args)
}

// boundElsewhere ADDRESS: a socket of the loopback cannot connect to it.
func boundElsewhere(args []string) error {
	fd, err := newSocket(familyOf(args[0]), unix.SOCK_NONBLOCK)
	if err != nil {
		return err
	}
	loopback := map[int]string{unix.AF_INET: "127.0.0.1:0", unix.AF_INET6: "[::1]:0"}[familyOf(args[0])]
	if err := unix.Bind(fd, sockaddr(loopback, familyOf(args[0]))); err != nil {
		return err
	}
	if err := failed(unix.Connect(fd, sockaddr(args[0], familyOf(args[0]))), unix.EINVAL, unix.EINPROGRESS); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if isSwitched(fd) {
		return errors.New("switched")
	}
	return nil
}

// deaf PORT [v6]: listens, and never accepts.
func deaf(args []string) error {
	any := "0.0.0.0:"
	if options(args[1:]).has("v6") {
		any = "[::]:"
	}
	listener, err := newSocket(familyOf(any), 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(listener, sockaddr(any+args[0], familyOf(any))); err != nil {
		return err
	}
	if err := unix.Listen(listener, 1); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.ReadAll(os.Stdin)
	return errors.Join(err, unix.Pause())
}

// ownTable ADDRESS: connects on a thread with its own table of descriptors, and prints
// the error or the connection.
func ownTable(args []string) (err error) {
	linux.OnNewThread(func() {
		if err = unix.Unshare(unix.CLONE_FILES); err != nil {
			return
		}
		var fd int
		if fd, err = newSocket(familyOf(args[0]), 0); err != nil {
			return
		}
		if failed := unix.Connect(fd, sockaddr(args[0], familyOf(args[0]))); failed != nil {
			fmt.Println(failed)
			return
		}
		var text string
		text, err = describe(fd)
		fmt.Println(text)
	})
	return err
}
