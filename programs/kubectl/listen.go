package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"

	"berth.dev/berth/programs/kubectl/loopback"
)

// listen opens a port: on the loopback for this user alone, and on any other
// address for everybody, which the user has asked for and is told.
func listen(address netip.AddrPort, notes io.Writer) (net.Listener, error) {
	if !address.Addr().IsLoopback() {
		listener, err := net.Listen("tcp", address.String())
		if err == nil {
			fmt.Fprintf(notes, "warning: %s is open to everybody who can reach this host\n", listener.Addr())
		}
		return listener, err
	}
	listener, err := loopback.Listen(address)
	if err != nil {
		return nil, err
	}
	listener.Refused = func(err error) { fmt.Fprintln(notes, "refused:", err) }
	return listener, nil
}
