package kubectl

import (
	"fmt"
	"io"
	"net"
	"net/netip"

	"berth.dev/berth/internal/access/loopback"
)

// listen opens a port. On the loopback only this user can connect; on any other
// address everybody can, as the user requested, and listen prints a warning.
func listen(address netip.AddrPort, warnings io.Writer) (net.Listener, error) {
	if !address.Addr().IsLoopback() {
		listener, err := net.Listen("tcp", address.String())
		if err == nil {
			fmt.Fprintf(warnings, "warning: %s is open to everybody who can reach this host\n", listener.Addr())
		}
		return listener, err
	}
	listener, err := loopback.Listen(address)
	if err != nil {
		return nil, err
	}
	listener.Refused = func(err error) { fmt.Fprintln(warnings, "refused:", err) }
	return listener, nil
}
