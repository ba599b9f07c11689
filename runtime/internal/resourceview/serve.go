package resourceview

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/fusewire"
)

// Package fuse serves images, and lets the kernel cache what it reads. This server must not
// let it, because the texts change.
const (
	// openDirect makes the kernel ask for each read: the text changes and has no size.
	openDirect = 1 << 0
	// background is the maximum number of requests in the background.
	background = 16
	rootID     = 1
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

// server answers the kernel for one mount. The number of a node is its index in nodes.
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
	request := make([]byte, fusewire.RequestSize)
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
			// Ignore errors: the kernel rejects a reply that no process waits for any more.
			_, _ = device.Write(answer)
		}
	}
}

// handle returns the reply to a request, or nil if the request needs none.
func (s *server) handle(request []byte) []byte {
	r, ok := fusewire.ParseRequest(request)
	if !ok || r.Unanswered() {
		return nil
	}
	out := make([]byte, fusewire.OutHeader)
	errno := unix.ENOENT
	if r.Node < uint64(len(s.nodes)) && s.nodes[r.Node] != nil || r.Opcode == fusewire.OpInit {
		out, errno = s.answer(out, r)
	}
	return r.Finish(out, errno)
}

// answer appends the body of the reply, and returns the error number, or 0.
func (s *server) answer(out []byte, r fusewire.Request) ([]byte, unix.Errno) {
	switch r.Opcode {
	case fusewire.OpInit:
		return r.AppendInit(out, fusewire.FlagNoOpendir, background)
	case fusewire.OpLookup:
		name, _ := r.Name(0)
		return s.lookup(out, r.Node, name)
	case fusewire.OpGetattr:
		return fusewire.AppendAttr(out, s.attr(r.Node)), 0
	case fusewire.OpOpen:
		return fusewire.AppendNumbers(out, 0, openDirect), 0
	case fusewire.OpRelease:
		return out, 0
	case fusewire.OpRead, fusewire.OpReaddir:
		offset, size, ok := r.ReadRange()
		if !ok {
			return out, unix.EINVAL
		}
		if r.Opcode == fusewire.OpReaddir {
			return s.readdir(out, r.Node, uint64(offset), size), 0
		}
		return s.read(out, r.Node, uint64(offset), size), 0
	}
	return out, unix.ENOSYS // the kernel does not ask again, or returns ENOSYS to the caller
}

func (s *server) lookup(out []byte, id uint64, name string) ([]byte, unix.Errno) {
	for _, child := range s.nodes[id].children {
		if s.nodes[child].name == name {
			return fusewire.AppendEntry(out, s.attr(child)), 0
		}
	}
	return out, unix.ENOENT
}

// read appends a part of a text. The text is made again only when a read starts at the
// beginning, so that a program with a small buffer gets the rest of the same text. Only if
// two programs read the same file in parts at once, they may get parts of two texts.
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
		if len(out)+fusewire.DirentLength(name) > limit {
			break
		}
		out = fusewire.AppendDirent(out, entries[i], i+1, s.attr(entries[i]).Mode, name)
	}
	return out
}

func (s *server) attr(id uint64) fusewire.Attr {
	mode := uint32(unix.S_IFREG | 0o444)
	if s.nodes[id].text == nil {
		mode = unix.S_IFDIR | 0o555
	}
	return fusewire.Attr{ID: id, Seconds: s.mounted, Mode: mode, Links: 1}
}
