package linux

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// VnetHeaderLen is the length of the header before each packet of a device with
// IFF_VNET_HDR:
// struct virtio_net_hdr of linux/virtio_net.h, without the field num_buffers.
const VnetHeaderLen = 10

// tunOffloads lists what a reader of the device must handle: TCP packets of up
// to 64 KiB, which are cut into segments only when they leave the host, and
// unfinished checksums. Without offloads every segment is a packet, and the
// kernel computes each checksum.
const tunOffloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN

// OpenTUN makes the TUN device name in the current network namespace, with
// IFF_NO_PI, IFF_VNET_HDR and the offloads for checksums and TCP segments. It
// is down, without address, and its MTU is the kernel's default of 1500.
// The device exists until the file, and every duplicate, is closed. The file is
// non-blocking, so that Go's poller serves it; it may be used from any
// network namespace.
func OpenTUN(name string) (*os.File, error) {
	return openTUN(name, 0)
}

// OpenTUNQueues works like OpenTUN, but returns a file for each of several queues, so that
// several threads can serve the device. The kernel keeps the packets of one flow in one
// queue.
func OpenTUNQueues(name string, queues int) ([]*os.File, error) {
	var files []*os.File
	for range queues {
		file, err := openTUN(name, unix.IFF_MULTI_QUEUE)
		if err != nil {
			CloseAll(files)
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

func openTUN(name string, flags uint16) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun (an administrator can run: modprobe tun && chmod 0666 /dev/net/tun): %w", err)
	}
	if err := attachTUN(fd, name, flags); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "/dev/net/tun:"+name), nil
}

func attachTUN(fd int, name string, flags uint16) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return fmt.Errorf("name TUN device %s: %w", name, err)
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("make TUN device %s: %w", name, err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tunOffloads); err != nil {
		return fmt.Errorf("set offloads of TUN device %s: %w", name, err)
	}
	return nil
}

// TUNHasVnetHeader reports whether packets of an open TUN device carry the
// virtio header (IFF_VNET_HDR). It works from any network namespace.
func TUNHasVnetHeader(fd int) (bool, error) {
	request, err := unix.NewIfreq("")
	if err != nil {
		return false, fmt.Errorf("ask for the flags of a TUN device: %w", err)
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, request); err != nil {
		return false, fmt.Errorf("ask for the flags of a TUN device: %w", err)
	}
	return request.Uint16()&unix.IFF_VNET_HDR != 0, nil
}
