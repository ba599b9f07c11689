package fuse

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/tree"
)

// order is the byte order of the protocol (include/uapi/linux/fuse.h): the machine's,
// which is little-endian on both supported architectures.
var order = binary.LittleEndian

// The requests that the server answers.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opReadlink    = 5
	opOpen        = 14
	opRead        = 15
	opStatfs      = 17
	opGetxattr    = 22
	opListxattr   = 23
	opInit        = 26
	opOpendir     = 27
	opReaddir     = 28
	opInterrupt   = 36
	opBatchForget = 42
	opReaddirplus = 44
)

// The protocol version, from Linux 5.2. Newer kernels support it, too.
const (
	protocolMajor = 7
	protocolMinor = 31
)

// The features to request from the kernel. It omits unsupported ones.
const (
	flagAsyncRead      = 1 << 0
	flagExportSupport  = 1 << 4
	flagDoReaddirplus  = 1 << 13
	flagNoOpen         = 1 << 17
	flagParallelDirops = 1 << 18
	flagMaxPages       = 1 << 22
	flagCacheSymlinks  = 1 << 23
	flagNoOpendir      = 1 << 24
	wantedFlags        = flagAsyncRead | flagExportSupport | flagDoReaddirplus | flagNoOpen |
		flagParallelDirops | flagMaxPages | flagCacheSymlinks | flagNoOpendir
)

const (
	inHeaderSize  = 40
	outHeaderSize = 16
	attrSize      = 88
	entrySize     = 40 + attrSize
	direntSize    = 24
	initSize      = 64
	statfsSize    = 80

	// forever lets the kernel cache a reply for this many seconds. The files never
	// change.
	forever = 1 << 31
	// maxReadPages is the largest read, in pages.
	maxReadPages = 256
	maxRead      = maxReadPages * 4096
)

// request is a request of the kernel.
type request struct {
	opcode uint32
	unique uint64
	node   uint64
	body   []byte
}

// parseRequest parses a request. The caller drops malformed ones.
func parseRequest(b []byte) (request, bool) {
	if len(b) < inHeaderSize {
		return request{}, false
	}
	size := int(order.Uint32(b[0:]))
	if size < inHeaderSize || size > len(b) {
		return request{}, false
	}
	return request{
		opcode: order.Uint32(b[4:]), unique: order.Uint64(b[8:]), node: order.Uint64(b[16:]), body: b[inHeaderSize:size],
	}, true
}

// name returns the string at the start of a body.
func (r request) name(offset int) (string, bool) {
	if len(r.body) <= offset {
		return "", false
	}
	for i, c := range r.body[offset:] {
		if c == 0 {
			return string(r.body[offset : offset+i]), true
		}
	}
	return "", false
}

// readRange returns the range of a read request.
func (r request) readRange() (offset int64, size int, ok bool) {
	if len(r.body) < 24 {
		return 0, 0, false
	}
	offset, size = int64(order.Uint64(r.body[8:])), int(order.Uint32(r.body[16:]))
	return offset, min(size, maxRead), offset >= 0
}

func appendAttr(b []byte, n tree.Node) []byte {
	links := max(1, n.Links)
	blocks := (uint64(n.Size) + 511) / 512
	device := uint32(0)
	if kind := n.Mode & erofs.TypeMask; kind == erofs.TypeChar || kind == erofs.TypeBlock {
		device = n.Device
	}
	for _, v := range [...]uint64{n.ID, uint64(n.Size), blocks, uint64(n.Seconds), uint64(n.Seconds), uint64(n.Seconds)} {
		b = order.AppendUint64(b, v)
	}
	for _, v := range [...]uint32{n.Nanoseconds, n.Nanoseconds, n.Nanoseconds, uint32(n.Mode), links, n.UID, n.GID, device, erofs.BlockSize, 0} {
		b = order.AppendUint32(b, v)
	}
	return b
}

func appendEntry(b []byte, n tree.Node) []byte {
	for _, v := range [...]uint64{n.ID, 0, forever, forever, 0} {
		b = order.AppendUint64(b, v)
	}
	return appendAttr(b, n)
}

// appendNoEntry appends a reply that lets the kernel cache the absence of a name.
func appendNoEntry(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, entrySize)...)
	order.PutUint64(b[at+16:], forever)
	return b
}

func appendDirent(b []byte, id uint64, next uint64, mode uint16, name string) []byte {
	b = order.AppendUint64(b, id)
	b = order.AppendUint64(b, next)
	b = order.AppendUint32(b, uint32(len(name)))
	b = order.AppendUint32(b, uint32(mode&erofs.TypeMask)>>12)
	b = append(b, name...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// direntLength returns the number of bytes that appendDirent adds.
func direntLength(name string) int { return (direntSize + len(name) + 7) &^ 7 }

// answerInit agrees on a protocol version and features with the kernel.
func answerInit(b []byte, r request) ([]byte, unix.Errno) {
	if len(r.body) < 16 {
		return b, unix.EPROTO
	}
	major, readahead, flags := order.Uint32(r.body[0:]), order.Uint32(r.body[8:]), order.Uint32(r.body[12:])
	if major < protocolMajor {
		return b, unix.EPROTO
	}
	at := len(b)
	b = append(b, make([]byte, initSize)...)
	out := b[at:]
	order.PutUint32(out[0:], protocolMajor)
	order.PutUint32(out[4:], protocolMinor)
	order.PutUint32(out[8:], readahead)
	order.PutUint32(out[12:], flags&wantedFlags)
	order.PutUint16(out[16:], 64) // requests in the background, for example for readahead
	order.PutUint16(out[18:], 48)
	order.PutUint32(out[20:], 4096) // maximum size of a write; the file system is read-only
	order.PutUint32(out[24:], 1)    // resolution of timestamps, in nanoseconds
	order.PutUint16(out[28:], maxReadPages)
	return b, 0
}
