package cluster

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Publish is a port of the nodes that is opened on their hosts.
type Publish struct {
	// Address is the host's; the zero value stands for all of them.
	Address netip.Addr
	// Host is the port there, Node the one that it leads to.
	Host, Node uint16
}

// ParsePublish reads a --publish value: [ADDRESS:]PORT[:PORT].
func ParsePublish(value string) (p Publish, err error) {
	wrong := fmt.Errorf("port to publish %q: give --publish [ADDRESS:]PORT[:PORT], such as 8080:80 for port 80 of the nodes at port 8080 of their hosts", value)
	colon := strings.LastIndexByte(value, ':')
	if p.Node, err = port(value[colon+1:]); err != nil {
		return Publish{}, wrong
	}
	p.Host = p.Node
	if colon < 0 {
		return p, nil
	}
	before := value[:colon]
	if host, err := port(before); err == nil {
		p.Host = host
		return p, nil
	}
	if both, err := netip.ParseAddrPort(before); err == nil && both.Port() != 0 {
		p.Address, p.Host = both.Addr(), both.Port()
		return p, nil
	}
	if p.Address, err = netip.ParseAddr(strings.Trim(before, "[]")); err != nil {
		return Publish{}, wrong
	}
	return p, nil
}

func port(text string) (uint16, error) {
	number, err := strconv.ParseUint(text, 10, 16)
	if err == nil && number == 0 {
		err = strconv.ErrRange
	}
	return uint16(number), err
}
