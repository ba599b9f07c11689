package cluster

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// Publish is a port of the nodes that is opened on their hosts.
type Publish struct {
	// Name is a name for the port, below the name of the job; see docs/site-network.md.
	Name string
	// Address is an address of the host. The zero value stands for all addresses.
	Address netip.Addr
	// Host is the port on the host, and Node the port of the node that it leads to.
	Host, Node uint16
}

// publishName matches names of one or two labels, as a site's network accepts
// them.
var publishName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$`)

// ParsePublish reads a --publish value: [NAME=][ADDRESS:]PORT[:PORT].
func ParsePublish(value string) (p Publish, err error) {
	name, rest, named := strings.Cut(value, "=")
	if !named {
		return parsePort(value)
	}
	if !publishName.MatchString(name) {
		return Publish{}, fmt.Errorf("name of a port to publish %q: give one or two parts of lowercase letters, digits and dashes, such as web.default=8080:80", value)
	}
	if p, err = parsePort(rest); err != nil {
		return Publish{}, err
	}
	if p.Address.IsLoopback() {
		return Publish{}, fmt.Errorf("name of a port to publish %q: a name leads to no loopback: leave out the name, or the address", value)
	}
	p.Name = name
	return p, nil
}

func parsePort(value string) (p Publish, err error) {
	wrong := fmt.Errorf("port to publish %q: give --publish [NAME=][ADDRESS:]PORT[:PORT], such as 8080:80 for port 80 of the nodes at port 8080 of their hosts", value)
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
