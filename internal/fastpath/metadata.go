package fastpath

import (
	"fmt"
	"net/netip"
)

// Metadata is what the runtime says of a container whose filter it delivers.
type Metadata struct {
	// Address is the pod's.
	Address netip.Addr
	// Network is the cookie of its network namespace (SO_NETNS_COOKIE).
	Network uint64
}

// MarshalText is how the runtime writes it.
func (m Metadata) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%s %d", m.Address, m.Network), nil
}

// UnmarshalText is the reverse.
func (m *Metadata) UnmarshalText(text []byte) error {
	var address string
	if _, err := fmt.Sscanf(string(text), "%s %d", &address, &m.Network); err != nil {
		return fmt.Errorf("read what a container is (%q): %w", text, err)
	}
	var err error
	if m.Address, err = netip.ParseAddr(address); err != nil {
		return fmt.Errorf("read what a container is (%q): %w", text, err)
	}
	return nil
}
