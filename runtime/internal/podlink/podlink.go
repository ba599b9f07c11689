// Package podlink sets options of a pod's network interface that CNI plugins cannot set, and
// reads the addresses that they have set. It uses no netlink library, because every pod has
// a shim, which must stay small.
package podlink

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// name is the pod interface's name, set by containerd.
const name = "eth0"

// LimitSuperPackets sets the size in bytes of the largest packet that the interface of a
// pod accepts unsegmented (gso_max_size). path is the network namespace of the pod.
func LimitSuperPackets(path string, size int) error {
	if err := inside(path, func() error { return setLink(size) }); err != nil {
		return fmt.Errorf("limit the packets of %s in %s to %d bytes: %w", name, path, size, err)
	}
	return nil
}

// IgnoreRedirects makes a pod ignore redirects to other pods of its node. For
// IPv6, the gateway's kernel sends them if both are behind the same bridge, and
// this cannot be disabled; but the bridge's ports are isolated.
func IgnoreRedirects(path string) error {
	err := inside(path, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_redirects", []byte("0"), 0)
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
		return fmt.Errorf("ignore redirects at %s in %s: %w", name, path, err)
	}
	return nil
}

// Identity identifies a pod's network: its IPv4 address, its IPv6 address if it
// has one, and the kernel's cookie of the namespace (SO_NETNS_COOKIE, Linux
// 5.14), in the fast path's format: "ADDRESS COOKIE" or "ADDRESS,ADDRESS6 COOKIE".
func Identity(path string) (identity string, err error) {
	err = inside(path, func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		cookie, err := unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		if err != nil {
			return err
		}
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if err := unix.IoctlIfreq(socket, unix.SIOCGIFADDR, request); err != nil {
			return err
		}
		address, err := request.Inet4Addr()
		if err != nil {
			return err
		}
		identity = netip.AddrFrom4([4]byte(address)).String()
		ipv6, err := address6()
		if err != nil {
			return err
		}
		if ipv6.IsValid() {
			identity += "," + ipv6.String()
		}
		identity += fmt.Sprintf(" %d", cookie)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("look at %s in %s: %w", name, path, err)
	}
	return identity, nil
}

// address6 returns the global IPv6 address of the interface in the network namespace of the
// thread. It returns an invalid address if there is none.
func address6() (netip.Addr, error) {
	table, err := os.ReadFile("/proc/thread-self/net/if_inet6")
	if errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
		return netip.Addr{}, nil
	}
	if err != nil {
		return netip.Addr{}, err
	}
	for line := range strings.Lines(string(table)) {
		// address, index, length of the prefix, scope, flags, interface
		fields := strings.Fields(line)
		if len(fields) != 6 || fields[5] != name || fields[3] != "00" {
			continue
		}
		bytes, err := hex.DecodeString(fields[0])
		if address, ok := netip.AddrFromSlice(bytes); err == nil && ok {
			return address, nil
		}
	}
	return netip.Addr{}, nil
}

// inside calls f on a new thread in a network namespace.
func inside(path string, f func() error) error {
	namespace, err := os.Open(path)
	if err != nil {
		return err
	}
	defer namespace.Close()
	failure := make(chan error)
	go func() {
		// The goroutine never unlocks its thread, so the thread ends with it, and no other
		// goroutine runs in the pod's namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			failure <- err
			return
		}
		failure <- f()
	}()
	return <-failure
}

// setLink sets gso_max_size of the interface in the network namespace of the thread.
func setLink(size int) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, request(size), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	// The kernel has answered before sendto(2) returns.
	answer := make([]byte, os.Getpagesize())
	n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return unix.EBADMSG
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// request returns an RTM_SETLINK message that sets gso_max_size.
func request(size int) []byte {
	order := binary.NativeEndian
	message := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	attribute := func(kind uint16, value []byte) {
		message = order.AppendUint16(message, uint16(unix.SizeofRtAttr+len(value)))
		message = append(order.AppendUint16(message, kind), value...)
		for len(message)%unix.RTA_ALIGNTO != 0 {
			message = append(message, 0)
		}
	}
	attribute(unix.IFLA_IFNAME, append([]byte(name), 0))
	// Since Linux 6.3 IPv4 has a separate limit, which follows this one up to 64
	// KiB.
	attribute(unix.IFLA_GSO_MAX_SIZE, order.AppendUint32(nil, uint32(size)))
	order.PutUint32(message, uint32(len(message)))
	order.PutUint16(message[4:], unix.RTM_SETLINK)
	order.PutUint16(message[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	return message
}
