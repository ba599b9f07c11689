package linux

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// NetlinkRequest is one message to the kernel. The body starts with the
// family's fixed header; attributes follow (NetlinkAttribute).
type NetlinkRequest struct {
	Type  uint16
	Flags uint16
	Body  []byte
}

// NetlinkAttribute encodes one attribute: the values are joined, so a nested
// attribute is one whose values are attributes.
func NetlinkAttribute(kind uint16, values ...[]byte) []byte {
	size := unix.SizeofRtAttr
	for _, value := range values {
		size += len(value)
	}
	attribute := make([]byte, 0, align4(size))
	attribute = binary.NativeEndian.AppendUint16(attribute, uint16(size))
	attribute = binary.NativeEndian.AppendUint16(attribute, kind)
	for _, value := range values {
		attribute = append(attribute, value...)
	}
	return append(attribute, make([]byte, align4(size)-size)...)
}

// NetlinkExchange sends the requests to a netlink protocol as one datagram,
// because nftables takes one datagram for one transaction. It waits for the
// acknowledgement of each request with NLM_F_ACK. If the kernel refuses a request, it
// returns the kernel's error number. It is for a few messages during a start, not for
// dumps.
func NetlinkExchange(protocol int, requests []NetlinkRequest) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return fmt.Errorf("open netlink socket (protocol %d): %w", protocol, err)
	}
	defer unix.Close(fd)
	// The kernel answers at once. A lost answer must not block the caller forever.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
		return fmt.Errorf("set netlink timeout: %w", err)
	}
	var datagram []byte
	waiting := 0
	for i, request := range requests {
		datagram = binary.NativeEndian.AppendUint32(datagram, uint32(unix.SizeofNlMsghdr+len(request.Body)))
		datagram = binary.NativeEndian.AppendUint16(datagram, request.Type)
		datagram = binary.NativeEndian.AppendUint16(datagram, request.Flags|unix.NLM_F_REQUEST)
		datagram = binary.NativeEndian.AppendUint32(datagram, uint32(i+1))
		datagram = binary.NativeEndian.AppendUint32(datagram, 0)
		datagram = append(datagram, request.Body...)
		datagram = append(datagram, make([]byte, align4(len(datagram))-len(datagram))...)
		if request.Flags&unix.NLM_F_ACK != 0 {
			waiting++
		}
	}
	if err := unix.Sendto(fd, datagram, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send to netlink (protocol %d): %w", protocol, err)
	}
	answer := make([]byte, 1<<16)
	for waiting > 0 {
		n, _, err := unix.Recvfrom(fd, answer, 0)
		if err != nil {
			return fmt.Errorf("receive from netlink (protocol %d): %w", protocol, err)
		}
		acknowledged, err := netlinkErrors(answer[:n])
		if err != nil {
			return err
		}
		waiting -= acknowledged
	}
	return nil
}

// netlinkErrors counts the acknowledgements in a datagram and returns the
// first refusal.
func netlinkErrors(datagram []byte) (int, error) {
	acknowledged := 0
	for len(datagram) >= unix.SizeofNlMsghdr {
		header := (*unix.NlMsghdr)(unsafe.Pointer(&datagram[0]))
		if int(header.Len) < unix.SizeofNlMsghdr || int(header.Len) > len(datagram) {
			return acknowledged, fmt.Errorf("read netlink message of %d bytes: %w", header.Len, unix.EBADMSG)
		}
		if header.Type == unix.NLMSG_ERROR && header.Len >= unix.SizeofNlMsghdr+4 {
			code := int32(binary.NativeEndian.Uint32(datagram[unix.SizeofNlMsghdr:]))
			if code != 0 {
				return acknowledged, unix.Errno(-code)
			}
			acknowledged++
		}
		datagram = datagram[min(align4(int(header.Len)), len(datagram)):]
	}
	return acknowledged, nil
}

func align4(n int) int { return (n + 3) &^ 3 }
