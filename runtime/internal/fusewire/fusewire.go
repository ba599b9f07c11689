// Package fusewire reads requests and writes replies of the FUSE protocol
// (include/uapi/linux/fuse.h). It serves the packages fuse and resourceview. What a
// request is answered with does not belong here.
package fusewire

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Order is the byte order of the protocol: the machine's, which is little-endian on
// both supported architectures.
var Order = binary.LittleEndian

// The requests that one of the servers answers.
const (
	OpLookup      = 1
	OpForget      = 2
	OpGetattr     = 3
	OpReadlink    = 5
	OpOpen        = 14
	OpRead        = 15
	OpStatfs      = 17
	OpRelease     = 18
	OpGetxattr    = 22
	OpListxattr   = 23
	OpInit        = 26
	OpOpendir     = 27
	OpReaddir     = 28
	OpInterrupt   = 36
	OpBatchForget = 42
	OpReaddirplus = 44
)

const (
	// InHeader and OutHeader are the sizes of the headers of requests and replies.
	InHeader, OutHeader = 40, 16
	// RequestSize is the size of the largest request to a read-only file system. The
	// kernel insists on 8 KiB.
	RequestSize = 8192
	// MaxRead is the largest read, in bytes.
	MaxRead      = maxReadPages * 4096
	maxReadPages = 256
	// Forever lets the kernel cache names and attributes for this many seconds.
	Forever = 1 << 31
	// blockSize is the block size that attributes name.
	blockSize = 4096

	attrSize = 88
	// EntrySize is the size of an entry with its attributes.
	EntrySize  = 40 + attrSize
	direntSize = 24
	initSize   = 64
)

// The protocol version, from Linux 5.2. Newer kernels support it, too.
const (
	protocolMajor = 7
	protocolMinor = 31
)

// FlagNoOpendir makes the kernel open directories without asking.
const FlagNoOpendir = 1 << 24

// Request is a request of the kernel.
type Request struct {
	Opcode       uint32
	Unique, Node uint64
	Body         []byte
}

// ParseRequest parses a request, and reports whether it is well-formed. The caller drops
// malformed ones.
func ParseRequest(b []byte) (Request, bool) {
	if len(b) < InHeader {
		return Request{}, false
	}
	size := int(Order.Uint32(b[0:]))
	if size < InHeader || size > len(b) {
		return Request{}, false
	}
	return Request{
		Opcode: Order.Uint32(b[4:]), Unique: Order.Uint64(b[8:]), Node: Order.Uint64(b[16:]), Body: b[InHeader:size],
	}, true
}

// Unanswered reports whether the kernel expects no reply.
func (r Request) Unanswered() bool {
	return r.Opcode == OpForget || r.Opcode == OpBatchForget || r.Opcode == OpInterrupt
}

// Name returns the zero-terminated string at an offset of the body, and reports whether
// there is one.
func (r Request) Name(offset int) (string, bool) {
	if len(r.Body) <= offset {
		return "", false
	}
	name, _, ok := bytes.Cut(r.Body[offset:], []byte{0})
	return string(name), ok
}

// ReadRange returns the range of a read request, of at most MaxRead bytes, and reports
// whether the request is well-formed.
func (r Request) ReadRange() (offset int64, size int, ok bool) {
	if len(r.Body) < 24 {
		return 0, 0, false
	}
	offset, size = int64(Order.Uint64(r.Body[8:])), int(Order.Uint32(r.Body[16:]))
	return offset, min(size, MaxRead), offset >= 0
}

// Finish fills in the header at the beginning of a reply, and drops the body if errno
// is not 0.
func (r Request) Finish(reply []byte, errno unix.Errno) []byte {
	if errno != 0 {
		reply = reply[:OutHeader]
	}
	Order.PutUint32(reply[0:], uint32(len(reply)))
	Order.PutUint32(reply[4:], uint32(-int32(errno)))
	Order.PutUint64(reply[8:], r.Unique)
	return reply
}

// AppendInit agrees on a protocol version and features with the kernel, which omits
// unsupported ones. background is the maximum number of requests in the background, for
// example for readahead. The error is EPROTO for a kernel before protocol version 7.
func (r Request) AppendInit(b []byte, features uint32, background uint16) ([]byte, unix.Errno) {
	if len(r.Body) < 16 {
		return b, unix.EPROTO
	}
	major, readahead, flags := Order.Uint32(r.Body[0:]), Order.Uint32(r.Body[8:]), Order.Uint32(r.Body[12:])
	if major < protocolMajor {
		return b, unix.EPROTO
	}
	at := len(b)
	b = append(b, make([]byte, initSize)...)
	out := b[at:]
	Order.PutUint32(out[0:], protocolMajor)
	Order.PutUint32(out[4:], protocolMinor)
	Order.PutUint32(out[8:], readahead)
	Order.PutUint32(out[12:], flags&features)
	Order.PutUint16(out[16:], background)
	Order.PutUint16(out[18:], background/4*3) // the congestion threshold
	Order.PutUint32(out[20:], 4096)           // maximum size of a write; the file systems are read-only
	Order.PutUint32(out[24:], 1)              // resolution of timestamps, in nanoseconds
	Order.PutUint16(out[28:], maxReadPages)
	return b, 0
}

// Attr holds the attributes of a file.
type Attr struct {
	ID, Size, Seconds                          uint64
	Nanoseconds, Mode, Links, UID, GID, Device uint32
}

// AppendAttr appends the reply to OpGetattr.
func AppendAttr(b []byte, a Attr) []byte { return appendAttr(AppendNumbers(b, Forever, 0), a) }

func appendAttr(b []byte, a Attr) []byte {
	blocks := (a.Size + 511) / 512
	b = AppendNumbers(b, a.ID, a.Size, blocks, a.Seconds, a.Seconds, a.Seconds)
	for _, v := range [...]uint32{a.Nanoseconds, a.Nanoseconds, a.Nanoseconds, a.Mode, a.Links, a.UID, a.GID, a.Device, blockSize, 0} {
		b = Order.AppendUint32(b, v)
	}
	return b
}

// AppendEntry appends the reply to OpLookup.
func AppendEntry(b []byte, a Attr) []byte {
	return appendAttr(AppendNumbers(b, a.ID, 0, Forever, Forever, 0), a)
}

// AppendDirent appends an entry of a directory. next is the offset of the entry after it.
func AppendDirent(b []byte, id, next uint64, mode uint32, name string) []byte {
	b = AppendNumbers(b, id, next)
	b = Order.AppendUint32(b, uint32(len(name)))
	b = Order.AppendUint32(b, mode&unix.S_IFMT>>12)
	b = append(b, name...)
	return append(b, make([]byte, DirentLength(name)-direntSize-len(name))...)
}

// DirentLength returns the number of bytes that AppendDirent adds.
func DirentLength(name string) int { return (direntSize + len(name) + 7) &^ 7 }

// AppendNumbers appends numbers of 64 bits.
func AppendNumbers(b []byte, numbers ...uint64) []byte {
	for _, n := range numbers {
		b = Order.AppendUint64(b, n)
	}
	return b
}
