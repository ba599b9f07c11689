// Package mounts mounts the trees of images: containerd makes the mount, and a
// separate process serves it. The package holds both ends of their protocol, and
// saves the state that a restarted server needs.
//
// Every message is one packet of a unix socket: JSON, and descriptors beside it.
package mounts

import (
	"errors"
	"fmt"
	"net"
	"os"

	"berth.dev/berth/runtime/internal/idmap"
)

// Request asks the server to serve a mount. The descriptor of the mount's /dev/fuse is
// beside it. The descriptor holder keeps the Request for a restarted server.
type Request struct {
	// ID identifies the mount.
	ID string
	// Layers holds the paths of the layers' images, the uppermost first.
	Layers []string
	// Squash makes user and group 0 the owners of all files. Otherwise owners are fitted
	// to IDs.
	Squash bool
	IDs    idmap.Map
	// Login marks a request without a mount. It brings a login to a registry, which
	// is only in the memory file beside it.
	Login bool
}

// reply answers a Request. Error is empty if it succeeded.
type reply struct {
	ID    string
	Error string
}

// keptMessage is a message between the server and the holder of its descriptors. A
// Request comes with a mount's descriptors to keep: /dev/fuse, the memory file,
// and the SIF files of its layers in order. An ID without a Request makes the holder
// forget the mount. When a server starts, the holder sends all that it keeps, and then an
// empty message.
type keptMessage struct {
	ID   string
	Data *Request
}

// Conn returns the connection behind an inherited descriptor, which it closes.
func Conn(fd int) (*net.UnixConn, error) {
	file := os.NewFile(uintptr(fd), "socket")
	if file == nil {
		return nil, errors.New("use inherited socket: no such descriptor")
	}
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("use inherited socket: %w", err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, errors.New("use inherited socket: it is not a unix socket")
	}
	return unixConn, nil
}
