package fastpath

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// programs run in pods. They fail where something is not as it is without a
// Switch, and print what their test is to see.
var programs map[string]func(args []string) error

func runProgram() error {
	runtime.LockOSThread()
	programs = map[string]func([]string) error{
		"serve": serve, "ask": ask, "goserve": goServe, "goask": goAsk, "refused": refused, "twice": twice, "relisten": relisten,
		"duplicate": duplicate, "forked": forked, "udp": udp, "udpserve": udpServe, "half": half, "many": many,
		"interrupted": interrupted, "boundelsewhere": boundElsewhere, "sharedbefore": sharedBefore, "deaf": deaf, "awaitreset": awaitReset,
		"slow": slow, "owntable": ownTable, "who": who, "whois": whoIs, "keep": keep, "hold": hold, "namesinrain": namesInRain, "acceptinrain": acceptInRain, "signalled": signalled,
		"connectinrain": connectInRain, "nested": nested, "options6": options6, "sixonly": ipv6Only, "unanswered": unanswered, "memory": memory,
	}
	for name, attack := range attacks {
		programs[name] = attack
	}
	for name, load := range loads {
		programs[name] = load
	}
	args := strings.Split(os.Getenv("ARGS"), "\x1f")
	run := programs[args[0]]
	if run == nil {
		return fmt.Errorf("no program %q", args[0])
	}
	return run(args[1:])
}

// options of a program are words, some with a value.
type options []string

func (o options) has(name string) bool { return slices.Contains(o, name) }

func (o options) value(name string, otherwise int) int {
	for _, word := range o {
		if text, ok := strings.CutPrefix(word, name+"="); ok {
			value, err := strconv.Atoi(text)
			if err != nil {
				panic(err)
			}
			return value
		}
	}
	return otherwise
}

// serve PORT [v6] [v6only] [at=ADDRESS] [hosts6] [tclass] [nonblock] [poll] [select] [epoll] [edge] [accept] [n=COUNT]
// [ask] [backlog=N] [reset]: echoes connections one after the other, and prints them.
func serve(args []string) error {
	o := options(args[1:])
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	family, any := unix.AF_INET, "0.0.0.0"
	if o.has("v6") {
		family, any = unix.AF_INET6, "[::]"
	}
	for _, word := range o {
		if address, ok := strings.CutPrefix(word, "at="); ok {
			any = address
		}
	}
	flags := 0
	if o.has("nonblock") {
		flags = unix.SOCK_NONBLOCK
	}
	listener, err := newSocket(family, flags)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(listener, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	if o.has("v6only") {
		if err := unix.SetsockoptInt(listener, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return err
		}
	}
	if err := unix.Bind(listener, sockaddr(fmt.Sprintf("%s:%d", any, port), family)); err != nil {
		return err
	}
	if err := unix.Listen(listener, o.value("backlog", 128)); err != nil {
		return err
	}
	wait := func() error { return nil }
	switch {
	case o.has("poll"):
		wait = func() error { return await(listener, unix.POLLIN) }
	case o.has("select"):
		wait = func() error { return awaitSelect(listener, false) }
	case o.has("epoll"):
		events := uint32(unix.EPOLLIN)
		if o.has("edge") {
			events |= unix.EPOLLET
		}
		epoll, err := epollWith(listener, events)
		if err != nil {
			return err
		}
		wait = func() error { return awaitEpoll(epoll, listener, unix.EPOLLIN) }
	}
	fmt.Println("ready")
	for left := o.value("n", 1); left > 0; left-- {
		fd, from, err := acceptAfter(listener, wait, o)
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		if o.has("quiet") {
			n, err := echo(fd)
			if err != nil {
				return fmt.Errorf("echo: %w", err)
			}
			if n == 0 {
				left++ // somebody thought better of it
			}
			continue
		}
		text, err := describe(fd)
		if err != nil {
			return err
		}
		if peer := strings.Fields(text)[1]; show(from) != peer {
			return fmt.Errorf("accept says %s, getpeername %s", show(from), peer)
		}
		value, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY)
		if err := returned(value, err, 1); err != nil {
			return fmt.Errorf("TCP_NODELAY of the listener is not inherited: %w", err)
		}
		if err := checkFamily(fd, family, o); err != nil {
			return err
		}
		if o.has("tclass") {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 8); err != nil {
				return fmt.Errorf("set an option of IPv6: %w", err)
			}
		}
		fmt.Println(text)
		_, err = echo(fd)
		// EPIPE is for a thread that waits when its own node breaks the connection.
		if o.has("reset") {
			err = failed(err, unix.ECONNRESET, unix.EPIPE)
		}
		if err != nil {
			return fmt.Errorf("echo: %w", err)
		}
	}
	return nil
}

// acceptAfter accepts like an event loop: after wait returns, and again if there is no
// connection after all.
func acceptAfter(listener int, wait func() error, o options) (fd int, from unix.Sockaddr, err error) {
	// An edge-triggered loop must first accept all connections that are there.
	for waited := o.has("edge"); ; waited = false {
		if !waited {
			if err := wait(); err != nil {
				return -1, nil, err
			}
		}
		if o.has("accept") {
			fd, from, err = unix.Accept(listener)
		} else {
			fd, from, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
		}
		if err != unix.EAGAIN && err != unix.EINTR {
			return fd, from, err
		}
	}
}

// echo returns how much it has sent back.
func echo(fd int) (total int, err error) {
	defer unix.Close(fd)
	b := make([]byte, 64<<10)
	for {
		n, err := unix.Read(fd, b)
		if err != nil || n == 0 {
			return total, err
		}
		if _, err := unix.Write(fd, b[:n]); err != nil {
			return total, err
		}
		total += n
	}
}

// ask ADDRESS [v6] [hosts6] [nonblock] [poll] [select] [epoll] [before] [edge] [bind=PORT]
// [fork]: connects, exchanges data, and prints the connection.
func ask(args []string) error {
	o := options(args[1:])
	family := familyOf(args[0])
	if o.has("v6") {
		family = unix.AF_INET6
	}
	flags := 0
	if o.has("nonblock") {
		flags = unix.SOCK_NONBLOCK
	}
	fd, err := newSocket(family, flags)
	if err != nil {
		return err
	}
	for _, option := range []int{unix.TCP_NODELAY, unix.TCP_KEEPCNT} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, 1); err != nil {
			return err
		}
	}
	if port := o.value("bind", 0); port != 0 {
		any := "0.0.0.0"
		if family == unix.AF_INET6 {
			any = "[::]"
		}
		if err := unix.Bind(fd, sockaddr(fmt.Sprintf("%s:%d", any, port), family)); err != nil {
			return err
		}
	}
	events := uint32(unix.EPOLLOUT)
	if o.has("edge") {
		events |= unix.EPOLLET
	}
	epoll := -1
	if o.has("before") {
		if epoll, err = epollWith(fd, events); err != nil {
			return err
		}
	}
	err = unix.Connect(fd, sockaddr(args[0], family))
	if err != nil && (!errors.Is(err, unix.EINPROGRESS) || !o.has("nonblock")) {
		return fmt.Errorf("connect: %w", err)
	}
	switch {
	case o.has("epoll"):
		if epoll < 0 {
			if epoll, err = epollWith(fd, events); err != nil {
				return err
			}
		}
		err = awaitEpoll(epoll, fd, unix.EPOLLOUT)
	case o.has("poll"):
		err = await(fd, unix.POLLOUT)
	case o.has("select"):
		err = awaitSelect(fd, true)
	default:
		err = nil
	}
	if err != nil {
		return fmt.Errorf("wait for the connection: %w", err)
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err := returned(code, err, 0); err != nil {
		return fmt.Errorf("SO_ERROR: %w", err)
	}
	if err := unix.Connect(fd, sockaddr(args[0], family)); err != nil || !o.has("nonblock") {
		if err := failed(err, unix.EISCONN); err != nil {
			return fmt.Errorf("connect again: %w", err)
		}
	}
	for _, option := range []int{unix.TCP_NODELAY, unix.TCP_KEEPCNT} {
		value, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, option)
		if err := returned(value, err, 1); err != nil {
			return fmt.Errorf("TCP option %d: %w", option, err)
		}
	}
	status, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err := returned(status&unix.O_NONBLOCK, err, flags); err != nil {
		return fmt.Errorf("O_NONBLOCK in the status flags: %w", err)
	}
	descriptor, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err := returned(descriptor, err, unix.FD_CLOEXEC); err != nil {
		return fmt.Errorf("descriptor flags: %w", err)
	}
	if err := checkFamily(fd, family, o); err != nil {
		return err
	}
	text, err := describe(fd)
	if err != nil {
		return err
	}
	fmt.Println(text)
	return exchange(fd, epoll, o.has("edge"))
}

// checkFamily expects a socket to be what the program has made. Between hosts
// that talk IPv6 it cannot be one of IPv4.
func checkFamily(fd, family int, o options) error {
	if o.has("hosts6") {
		family = unix.AF_INET6
	}
	if got := sock.Domain(fd); got != family {
		return fmt.Errorf("SO_DOMAIN is %d, not %d", got, family)
	}
	return nil
}

// exchange sends what comes back.
func exchange(fd, epoll int, edge bool) error {
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1024)
	n, err := unix.Write(fd, sent)
	if err := returned(n, err, len(sent)); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if epoll >= 0 {
		events := uint32(unix.EPOLLIN)
		if edge {
			events |= unix.EPOLLET
		}
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd), Pad: 77}); err != nil {
			return fmt.Errorf("change what epoll waits for: %w", err)
		}
		if err := awaitEpoll(epoll, fd, unix.EPOLLIN); err != nil {
			return fmt.Errorf("wait for the answer: %w", err)
		}
	}
	var back []byte
	for b := make([]byte, 4096); len(back) < len(sent); {
		if err := await(fd, unix.POLLIN); err != nil {
			return err
		}
		n, err := unix.Read(fd, b)
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		back = append(back, b[:n]...)
	}
	if !bytes.Equal(back, sent) {
		return errors.New("something else came back")
	}
	return unix.Close(fd)
}

// goServe serves N connections with Go's package net, for the command goserve PORT N.
func goServe(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", ":"+args[0])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	done := make(chan error)
	for range n {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, err := io.Copy(conn, conn)
			done <- errors.Join(err, conn.Close())
		}()
	}
	for range n {
		err = errors.Join(err, <-done)
	}
	return err
}

func goAsk(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	done := make(chan error)
	for range n {
		go func() {
			conn, err := net.Dial("tcp", args[0])
			if err != nil {
				done <- err
				return
			}
			defer conn.Close()
			if _, err := conn.Write([]byte("hello")); err != nil {
				done <- err
				return
			}
			if peer := conn.RemoteAddr().String(); peer != args[0] {
				done <- fmt.Errorf("connected to %s", peer)
				return
			}
			conn.(*net.TCPConn).CloseWrite()
			got, err := io.ReadAll(conn)
			if err == nil && string(got) != "hello" {
				err = fmt.Errorf("received %q", got)
			}
			done <- err
		}()
	}
	for range n {
		err = errors.Join(err, <-done)
	}
	return err
}
