package linux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

func TestNetlinkAttribute(t *testing.T) {
	inner := NetlinkAttribute(7, []byte("abc"))
	if len(inner) != 8 || binary.NativeEndian.Uint16(inner) != 7 || binary.NativeEndian.Uint16(inner[2:]) != 7 || !bytes.Equal(inner[4:], []byte("abc\x00")) {
		t.Errorf("got % x", inner)
	}
	// The length of a nest covers the padding of what is inside.
	outer := NetlinkAttribute(1, inner, inner)
	if len(outer) != 20 || binary.NativeEndian.Uint16(outer) != 20 {
		t.Errorf("got % x", outer)
	}
}

func TestNetlinkExchange(t *testing.T) {
	// Everybody may ask for a link; there is none of this index.
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], 1<<30)
	err := NetlinkExchange(unix.NETLINK_ROUTE, []NetlinkRequest{{Type: unix.RTM_GETLINK, Flags: unix.NLM_F_ACK, Body: body}})
	if !errors.Is(err, unix.ENODEV) {
		t.Errorf("got %v, want ENODEV", err)
	}
	err = NetlinkExchange(unix.NETLINK_ROUTE, []NetlinkRequest{{Type: unix.NLMSG_NOOP, Flags: unix.NLM_F_ACK}})
	if err != nil {
		t.Errorf("got %v", err)
	}
}

func FuzzNetlinkErrors(f *testing.F) {
	f.Add([]byte{36, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, datagram []byte) {
		fuzzbound.Watch(t)
		if count, _ := netlinkErrors(datagram); count > len(datagram)/unix.SizeofNlMsghdr {
			t.Errorf("%d acknowledgements in %d bytes", count, len(datagram))
		}
	})
}
