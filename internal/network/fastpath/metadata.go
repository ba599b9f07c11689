package fastpath

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// metadata describes the container whose filter the runtime delivers.
type metadata struct {
	// Address is the pod's IPv4 address, and AddressIPv6 its IPv6 address. AddressIPv6 is
	// invalid if the pod has none.
	Address, AddressIPv6 netip.Addr
	// Network is the cookie of the pod's network namespace (SO_NETNS_COOKIE).
	Network uint64
	// Memory is the memory in bytes that sysinfo(2) reports; 0 leaves the call to the
	// kernel.
	Memory uint64
}

// UnmarshalText parses the metadata that the runtime sends: the addresses separated by a
// comma, the cookie, and the memory, which may be missing.
func (m *metadata) UnmarshalText(text []byte) error {
	var addresses string
	// The last number is optional.
	if n, err := fmt.Sscan(string(text), &addresses, &m.Network, &m.Memory); n < 2 || n == 2 && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the metadata of a container (%q): %w", text, err)
	}
	four, ipv6, both := strings.Cut(addresses, ",")
	var err error
	if m.Address, err = netip.ParseAddr(four); err == nil && both {
		m.AddressIPv6, err = netip.ParseAddr(ipv6)
	}
	if err == nil && (!m.Address.Is4() || both && !m.AddressIPv6.Is6()) {
		err = unix.EAFNOSUPPORT
	}
	if err != nil {
		return fmt.Errorf("read the metadata of a container (%q): %w", text, err)
	}
	return nil
}
