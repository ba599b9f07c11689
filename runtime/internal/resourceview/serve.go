package resourceview

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The part of the FUSE protocol that files without a size need
// (include/uapi/linux/fuse.h, version 7.31 of Linux 5.2). Package fuse serves
// images, and lets the kernel cache what it reads. This server must not.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opOpen        = 14
	opRead        = 15
	opRelease     = 18
	opInit        = 26
	opReaddir     = 28
	opInterrupt   = 36
	opBatchForget = 42

	flagNoOpendir = 1 << 24
	// openDirect makes the kernel ask for each read: the text changes and has no size.
	openDirect = 1 << 0

	inHeader, outHeader = 40, 16
	// requestSize is the least that the kernel accepts.
	requestSize = 8192
	// forever is the time in seconds that the kernel may cache names and attributes.
	forever = 1 << 31
	rootID  = 1
)

// node is a file or a directory.
type node struct {
	name     string
	text     func() string // nil for a directory
	parent   uint64
	children []uint64
	// last is the text of the last read from the beginning.
	last string
}

// server answers the kernel for one mount. Nodes have the number of their place
// in the slice.
type server struct {
	nodes   []*node
	mounted uint64
}

func newServer(files map[string]func() string) *server {
	s := &server{nodes: []*node{rootID: {}}, mounted: uint64(time.Now().Unix())}
	ids := map[string]uint64{"/": rootID}
	var add func(name string, text func() string) uint64
	add = func(name string, text func() string) uint64 {
		if id, ok := ids[name]; ok {
			return id
		}
		parent := add(path.Dir(name), nil)
		id := uint64(len(s.nodes))
		s.nodes = append(s.nodes, &node{name: path.Base(name), text: text, parent: parent})
		s.nodes[parent].children = append(s.nodes[parent].children, id)
		ids[name] = id
		return id
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		add(name, files[name])
	}
	return s
}

// serve answers until the file system is no longer mounted anywhere.
func (s *server) serve(device *os.File) error {
	request := make([]byte, requestSize)
	for {
		n, err := device.Read(request)
		switch {
		case errors.Is(err, unix.ENODEV), errors.Is(err, os.ErrClosed):
			return nil
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR): // interrupted before it was handed out
			continue
		case err != nil:
			return fmt.Errorf("read request: %w", err)
		}
		if answer := s.handle(request[:n]); answer != nil {
			// Nobody waits any more for what the kernel does not take.
			_, _ = device.Write(answer)
		}
	}
}

var order = binary.LittleEndian

// handle returns the reply to a request, or nil if the request needs none.
func (s *server) handle(request []byte) []byte {
	if len(request) < inHeader {
		return nil
	}
	opcode, unique, id, body := order.Uint32(request[4:]), order.Uint64(request[8:]), order.Uint64(request[16:]), request[inHeader:]
	if opcode == opForget || opcode == opBatchForget || opcode == opInterrupt {
		return nil
	}
	out := make([]byte, outHeader)
	errno := unix.ENOENT
	if id < uint64(len(s.nodes)) && s.nodes[id] != nil || opcode == opInit {
		out, errno = s.answer(out, opcode, id, body)
	}
	if errno != 0 {
		out = out[:outHeader]
	}
	order.PutUint32(out[0:], uint32(len(out)))
	order.PutUint32(out[4:], uint32(-int32(errno)))
	order.PutUint64(out[8:], unique)
	return out
}

// answer appends what follows the header.
func (s *server) answer(out []byte, opcode uint32, id uint64, body []byte) ([]byte, unix.Errno) {
	switch opcode {
	case opInit:
		return appendInit(out, body)
	case opLookup:
		return s.lookup(out, id, strings.TrimRight(string(body), "\x00"))
	case opGetattr:
		return s.appendAttr(appendNumbers(out, forever, 0), id), 0
	case opOpen:
		return appendNumbers(out, 0, openDirect), 0
	case opRelease:
		return out, 0
	case opRead, opReaddir:
		if len(body) < 24 {
			return out, unix.EINVAL
		}
		offset, size := order.Uint64(body[8:]), int(order.Uint32(body[16:]))
		if opcode == opReaddir {
			return s.readdir(out, id, offset, size), 0
		}
		return s.read(out, id, offset, size), 0
	}
	return out, unix.ENOSYS // the kernel does not ask again, or passes it on
}

func appendInit(out, body []byte) ([]byte, unix.Errno) {
	if len(body) < 16 || order.Uint32(body) < 7 {
		return out, unix.EPROTO
	}
	at := len(out)
	out = append(out, make([]byte, 64)...)
	init := out[at:]
	order.PutUint32(init[0:], 7)
	order.PutUint32(init[4:], 31)
	order.PutUint32(init[12:], order.Uint32(body[12:])&flagNoOpendir)
	order.PutUint16(init[16:], 16) // requests in the background
	order.PutUint16(init[18:], 12)
	order.PutUint32(init[20:], 4096) // bytes to write at once; nothing is
	order.PutUint32(init[24:], 1)    // nanoseconds in the unit of time
	return out, 0
}

func (s *server) lookup(out []byte, id uint64, name string) ([]byte, unix.Errno) {
	for _, child := range s.nodes[id].children {
		if s.nodes[child].name == name {
			return s.appendAttr(appendNumbers(out, child, 0, forever, forever, 0), child), 0
		}
	}
	return out, unix.ENOENT
}

// read returns a part of a text. It is made again when a read starts at the
// beginning, so that a program with a small buffer gets the rest of what it
// began with. Only two programs that read the same file in parts at once can
// get parts of two texts.
func (s *server) read(out []byte, id, offset uint64, size int) []byte {
	n := s.nodes[id]
	if n.text == nil {
		return out
	}
	if offset == 0 {
		n.last = n.text()
	}
	if offset >= uint64(len(n.last)) {
		return out
	}
	part := n.last[offset:]
	return append(out, part[:min(len(part), size)]...)
}

// readdir lists a directory after the first offset entries.
func (s *server) readdir(out []byte, id, offset uint64, size int) []byte {
	n := s.nodes[id]
	limit := len(out) + size
	entries := append([]uint64{id, max(n.parent, rootID)}, n.children...)
	for i := offset; i < uint64(len(entries)); i++ {
		name := s.nodes[entries[i]].name
		if i < 2 {
			name = [2]string{".", ".."}[i]
		}
		length := (24 + len(name) + 7) &^ 7
		if len(out)+length > limit {
			break
		}
		out = appendNumbers(out, entries[i], i+1)
		out = order.AppendUint32(out, uint32(len(name)))
		out = order.AppendUint32(out, s.mode(entries[i])>>12)
		out = append(out, name...)
		out = append(out, make([]byte, length-24-len(name))...)
	}
	return out
}

func (s *server) mode(id uint64) uint32 {
	if s.nodes[id].text == nil {
		return unix.S_IFDIR | 0o555
	}
	return unix.S_IFREG | 0o444
}

func (s *server) appendAttr(out []byte, id uint64) []byte {
	out = appendNumbers(out, id, 0, 0, s.mounted, s.mounted, s.mounted)
	for _, v := range [...]uint32{0, 0, 0, s.mode(id), 1, 0, 0, 0, 4096, 0} {
		out = order.AppendUint32(out, v)
	}
	return out
}

func appendNumbers(out []byte, numbers ...uint64) []byte {
	for _, n := range numbers {
		out = order.AppendUint64(out, n)
	}
	return out
}
