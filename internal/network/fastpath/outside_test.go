package fastpath

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// echoOutside starts a server on the second host, which is outside the cluster for the
// pods of the first one. The channel receives the address of each client.
func (l *lab) echoOutside(t *testing.T) (address string, from chan netip.Addr) {
	t.Helper()
	var listener net.Listener
	l.hosts[1].ns.try(t, func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(l.hosts[1].address, 0).String())
		return err
	})
	t.Cleanup(func() { listener.Close() })
	from = make(chan netip.Addr, 10000)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			from <- conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr().String(), from
}

func TestOutsideIsReachedByHost(t *testing.T) {
	l := newLab(t, labConfig{})
	client := l.hosts[0].addPod(10)
	address, from := l.echoOutside(t)
	clients := []string{
		"", "nonblock poll", "nonblock select", "nonblock epoll", "nonblock epoll edge", "nonblock epoll before",
		"nonblock epoll before edge", "epoll before", "v6", "v6 nonblock epoll before",
	}
	for _, c := range clients {
		t.Run(c, func(t *testing.T) {
			expect(t, client.run("ask", append([]string{address}, strings.Fields(c)...)...), client.address, l.hosts[1].address, "switched")
			if got := <-from; got != l.hosts[0].address {
				t.Errorf("the server sees %s", got)
			}
		})
	}
	client.run("goask", address, "20")
	client.counts(t, countOutside, uint64(len(clients)+20))
	for _, mode := range []string{"", "nonblock"} {
		if got := client.run("refused", l.hosts[1].address.String()+":9", mode); got != "connection refused" {
			t.Errorf("connect to a port without a listener (%s): %q", mode, got)
		}
	}
	expect(t, client.run("twice", l.hosts[1].address.String()+":9", address), client.address, l.hosts[1].address, "switched")
	client.run("unanswered", l.hosts[1].address.Next().String()+":5000")
}

// unanswered ADDRESS: connects to where nobody answers for some seconds.
func unanswered(args []string) error {
	to := sockaddr(args[0], unix.AF_INET)
	fd, err := newSocket(unix.AF_INET, unix.SOCK_NONBLOCK)
	if err != nil {
		return err
	}
	for _, want := range []unix.Errno{unix.EINPROGRESS, unix.EALREADY, unix.EALREADY} {
		if err := failed(unix.Connect(fd, to), want); err != nil {
			return fmt.Errorf("connect that must not wait: %w", err)
		}
	}
	_, err = unix.Getpeername(fd)
	if err := failed(err, unix.ENOTCONN); err != nil {
		return fmt.Errorf("getpeername before there is a connection: %w", err)
	}
	limited, err := newSocket(unix.AF_INET, 0)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptTimeval(limited, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
		return err
	}
	if err := failed(unix.Connect(limited, to), unix.EINPROGRESS); err != nil {
		return fmt.Errorf("connect with a limit to its time: %w", err)
	}
	// A signal has it left to the kernel, and the lab's pods have no other way out.
	waiting, err := newSocket(unix.AF_INET, 0)
	if err != nil {
		return err
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGUSR1)
	thread := unix.Gettid()
	time.AfterFunc(200*time.Millisecond, func() { _ = unix.Tgkill(os.Getpid(), thread, unix.SIGUSR1) })
	if err := failed(unix.Connect(waiting, to), unix.EINTR, unix.ENETUNREACH, unix.EHOSTUNREACH); err != nil {
		return fmt.Errorf("connect that a signal interrupts: %w", err)
	}
	if err := await(fd, unix.POLLOUT); err != nil {
		return err
	}
	if err := failed(unix.Connect(fd, to), unix.EHOSTUNREACH); err != nil {
		return fmt.Errorf("the end of it: %w", err)
	}
	if err := failed(unix.Connect(fd, to), unix.ECONNABORTED); err != nil {
		return fmt.Errorf("once more: %w", err)
	}
	return nil
}

func TestOutsidePolicyDenies(t *testing.T) {
	l := newLab(t, labConfig{})
	client := l.hosts[0].addPod(10)
	address, _ := l.echoOutside(t)
	cut := client.serve("awaitreset", address)
	if got := l.hosts[0].deny(address); got != "1 <nil>" {
		t.Errorf("cut %s, not one", got)
	}
	cut.wait()
	if got := client.run("refused", address); got != "network is unreachable" && got != "no route to host" {
		t.Errorf("connect: %q", got)
	}
	client.counts(t, countPolicy, 1)
}

// TestOutsideConnectSucceedsWithDeadSwitch checks that connections to the outside go on
// while their Switch dies and starts again. The lab's overlay does not lead outside, so
// it cannot carry them.
func TestOutsideConnectSucceedsWithDeadSwitch(t *testing.T) {
	l := newLab(t, labConfig{})
	address, _ := l.echoOutside(t)
	const each = 500
	asking := []*app{
		l.hosts[0].addPod(10).start("many", address, fmt.Sprint(each)), l.hosts[0].addPod(11).start("many", address, fmt.Sprint(each)),
		l.hosts[0].addPod(12).start("goask", address, "200"),
	}
	for range 6 {
		l.hosts[0].kill()
		l.hosts[0].startSwitch()
	}
	for _, a := range asking {
		if _, err := a.result(); err != nil {
			t.Error(err)
		}
	}
}

func TestOutsideSocketHasNoOtherUse(t *testing.T) {
	l := newLab(t, labConfig{})
	client := l.hosts[0].addPod(10)
	address, _ := l.echoOutside(t)
	for attack, want := range map[string]string{
		"disconnect " + address + " 127.0.0.1:9 16": "disconnect: operation not supported",
		"disconnect " + address + " 127.0.0.1:9 2":  "disconnect: operation not supported",
		"listen " + address:                         "disconnect: operation not supported",
	} {
		words := strings.Fields(attack)
		if got := client.run(words[0], words[1:]...); got != want {
			t.Errorf("%s: %q, not %q", attack, got, want)
		}
	}
}
