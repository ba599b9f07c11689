package fastpath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
	"berth.dev/berth/internal/testutil"
)

// attacks holds programs that try to use a socket of the host's network as they like. A
// pod must not be able to do that. They print the error of the first call that stops
// them, or what they have reached.
var attacks = map[string]func([]string) error{
	"disconnect": attackDisconnect, "listen": attackListen, "fastopen": attackFastOpen, "i386": attackForeign,
	"rings": attackRings, "bellport": bellPort, "hijack": attackHijack, "slurp": slurp,
}

// secretOf prints what the server at the other end of a socket sends.
func secretOf(fd int) error {
	b := make([]byte, 64)
	n, err := unix.Read(fd, b)
	if err != nil {
		return fmt.Errorf("read the secret: %w", err)
	}
	fmt.Println(string(b[:n]))
	return nil
}

// switchedSocket returns a socket whose connection to a pod is switched.
func switchedSocket(address string) (int, error) {
	fd, err := newSocket(familyOf(address), 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, sockaddr(address, familyOf(address))); err != nil {
		return -1, err
	}
	if !isSwitched(fd) {
		return -1, errors.New("not switched")
	}
	return fd, nil
}

// rawConnectTo connects with an address of any length.
func rawConnectTo(fd int, address []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&address[0])), uintptr(len(address)))
	if errno != 0 {
		return errno
	}
	return nil
}

// rawInet returns a socket address in a buffer of at least the given length.
func rawInet(to string, length int) []byte {
	raw := sock.Raw(netip.MustParseAddrPort(to), familyOf(to) == unix.AF_INET6)
	b := make([]byte, max(length, len(raw)))
	copy(b, raw)
	return b
}

// attackDisconnect POD HOST LENGTH...: frees a switched socket from its
// connection and connects it to the host's loopback.
func attackDisconnect(args []string) error {
	fd, err := switchedSocket(args[0])
	if err != nil {
		return err
	}
	length, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	if err := rawConnectTo(fd, make([]byte, length)); err != nil { // AF_UNSPEC
		fmt.Println("disconnect:", err)
		return nil
	}
	if err := rawConnectTo(fd, rawInet(args[1], length)); err != nil {
		fmt.Println("connect:", err)
		return nil
	}
	return secretOf(fd)
}

// attackListen POD: listens on a switched socket, which belongs to the host's network.
func attackListen(args []string) error {
	fd, err := switchedSocket(args[0])
	if err != nil {
		return err
	}
	if err := rawConnectTo(fd, make([]byte, 16)); err != nil {
		fmt.Println("disconnect:", err)
		return nil
	}
	if err := unix.Listen(fd, 1); err != nil {
		fmt.Println("listen:", err)
		return nil
	}
	fmt.Println("listens")
	return nil
}

// attackFastOpen POD HOST: connects by sending.
func attackFastOpen(args []string) error {
	fd, err := switchedSocket(args[0])
	if err != nil {
		return err
	}
	if err := rawConnectTo(fd, make([]byte, 16)); err != nil {
		fmt.Println("disconnect:", err)
		return nil
	}
	if err := unix.Sendto(fd, []byte{1}, unix.MSG_FASTOPEN, sockaddr(args[1], familyOf(args[1]))); err != nil {
		fmt.Println("send:", err)
		return nil
	}
	return secretOf(fd)
}

// attackForeign POD HOST: disconnects and connects with system calls of i386.
func attackForeign(args []string) error {
	fd, err := switchedSocket(args[0])
	if err != nil {
		return err
	}
	if err := foreignConnect(fd, make([]byte, 16)); err != nil {
		fmt.Println("disconnect:", err)
		return nil
	}
	if err := foreignConnect(fd, rawInet(args[1], 16)); err != nil {
		fmt.Println("connect:", err)
		return nil
	}
	return secretOf(fd)
}

// attackRings POD HOST: the same with io_uring.
func attackRings(args []string) error {
	fd, err := switchedSocket(args[0])
	if err != nil {
		return err
	}
	ring, err := newRing()
	if err != nil {
		fmt.Println("ring:", err)
		return nil
	}
	for _, address := range [][]byte{make([]byte, 16), rawInet(args[1], 16)} {
		if err := ring.connect(fd, address); err != nil {
			return fmt.Errorf("connect with io_uring: %w", err)
		}
	}
	return secretOf(fd)
}

// ring holds an io_uring, with only what it needs to connect.
type ring struct {
	fd                  int
	submissions, events []byte
	entries             []byte
	params              ringParams
}

type ringParams struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	_                                                                      [3]uint32
	sq                                                                     [10]uint32 // head, tail, mask, entries, flags, dropped, array, ...
	cq                                                                     [10]uint32 // head, tail, mask, entries, overflow, cqes, ...
}

func newRing() (*ring, error) {
	r := &ring{}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&r.params)), 0)
	if errno != 0 {
		return nil, errno
	}
	r.fd = int(fd)
	var err1, err2, err3 error
	r.submissions, err1 = unix.Mmap(r.fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	r.events, err2 = unix.Mmap(r.fd, 0x8000000, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	r.entries, err3 = unix.Mmap(r.fd, 0x10000000, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return r, errors.Join(err1, err2, err3)
}

func (r *ring) connect(fd int, address []byte) error {
	const opConnect, getEvents = 16, 1
	at := func(b []byte, offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&b[offset])) }
	entry := (*struct {
		opcode, flags uint8
		_             uint16
		fd            int32
		length        uint64
		address       uint64
		_             [40]byte
	})(unsafe.Pointer(&r.entries[0]))
	entry.opcode, entry.fd, entry.length, entry.address = opConnect, int32(fd), uint64(len(address)), uint64(uintptr(unsafe.Pointer(&address[0])))
	*at(r.submissions, r.params.sq[6]) = 0
	*at(r.submissions, r.params.sq[1])++
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 1, 1, getEvents, 0, 0); errno != 0 {
		return errno
	}
	head := at(r.events, r.params.cq[0])
	result := int32(*at(r.events, r.params.cq[5]+16*(*head&*at(r.events, r.params.cq[2]))+8))
	*head++
	if result < 0 {
		return unix.Errno(-result)
	}
	return nil
}

// bellPort PORT [v6]: prints the port of a bell that has rung for a listener of this
// pod, as only root of the node could know.
func bellPort(args []string) error {
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	table := "/proc/net/tcp"
	if options(args[1:]).has("v6") {
		table = "/proc/net/tcp6"
	}
	return findBell(table, port)
}

func findBell(path string, port int) error {
	table, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != "01" || !strings.HasSuffix(fields[2], fmt.Sprintf(":%04X", port)) {
			continue
		}
		_, text, _ := strings.Cut(fields[1], ":")
		bell, err := strconv.ParseUint(text, 16, 16)
		fmt.Println(bell)
		return err
	}
	return errors.New("no bell has rung")
}

// attackHijack ADDRESS PORT BELL: gives itself the address of another pod, and
// rings for itself as that pod's bell.
func attackHijack(args []string) error {
	address := netip.MustParseAddr(args[0])
	whole := []netip.Prefix{netip.PrefixFrom(address, address.BitLen())}
	if err := errors.Join(testutil.SetUpLink("lo", whole...), settled(whole)); err != nil {
		return err
	}
	own, asBell := net.JoinHostPort(args[0], args[1]), net.JoinHostPort(args[0], args[2])
	family := familyOf(own)
	listener, err := newSocket(family, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(listener, sockaddr(own, family)); err != nil {
		return err
	}
	if err := unix.Listen(listener, 1); err != nil {
		return err
	}
	bell, err := newSocket(family, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(bell, sockaddr(asBell, family)); err != nil {
		return err
	}
	if err := unix.Connect(bell, sockaddr(own, family)); err != nil {
		return err
	}
	fd, _, err := unix.Accept(listener)
	if err != nil {
		return err
	}
	if isSwitched(fd) {
		return secretOf(fd)
	}
	fmt.Println("own connection")
	return nil
}

// slurp ADDRESS: connects, says a secret, and stays.
func slurp(args []string) error {
	fd, err := switchedSocket(args[0])
	if err != nil {
		return err
	}
	if _, err := unix.Write(fd, []byte("a secret")); err != nil {
		return err
	}
	fmt.Println("ready")
	return unix.Pause()
}

// secretService starts a service of another user on the host's loopback, or another
// address of the host.
func (h *host) secretService(address string) string {
	h.lab.Helper()
	var listener net.Listener
	at := netip.MustParseAddr(address)
	h.ns.try(h.lab, func() error {
		if at.IsLinkLocalUnicast() {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			at = at.WithZone(strconv.Itoa(link.Attrs().Index))
		}
		var err error
		listener, err = net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
		return err
	})
	h.lab.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("a secret"))
			h.lab.Cleanup(func() { conn.Close() })
		}
	}()
	return netip.AddrPortFrom(at, listener.Addr().(*net.TCPAddr).AddrPort().Port()).String()
}
