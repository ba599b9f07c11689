// Package budget holds the limits on what one image may make its readers use, with
// the reason for each. Readers of every format take their limits from here. It does
// not know the space on a disk, see package freespace.
//
// The limits grow with the size of the image's file. A small image cannot claim much:
// the reader of a file of 6 MB uses less than 200 MB of memory. A large image may
// contain as much as usual tools put into one of its size.
package budget

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
)

const (
	// files bounds the files of a layer or file system. Images of 2 million files
	// exist. Each takes about 250 bytes of memory while its layer is converted.
	files = 4 << 20
	// path bounds the bytes of a path. It is the kernel's limit for a path in a system
	// call, so no usual tool packs a longer one.
	path = 4096
	// leastKept bounds the bytes that a reader keeps about the files of a layer: names,
	// targets of links, attributes. Until a garbage collection they may take twice the
	// memory. If keptRatio times the size of the packed data is more, it is the limit
	// instead, up to mostKept. The header of
	// an empty file takes 14 to 25 packed bytes, and few files of an image are empty.
	leastKept, keptRatio, mostKept = 48 << 20, 8, 2 << 30
	// tableRatio replaces keptRatio for a table of contents of eStargz, which holds nothing
	// else: a file takes 45 packed bytes or more, because of its digest.
	tableRatio = 32
	// leastContent bounds the unpacked size of a layer or archive in bytes. If
	// contentRatio times the size of the packed data is more, it is the limit instead,
	// up to mostContent. Layers have ratios of 2 to 10, but /var/log/lastlog has 292
	// zeros for each uid below the largest one. A reader takes about a second for a
	// gigabyte, and four bytes of memory for each four kilobytes.
	leastContent, contentRatio, mostContent = 4 << 30, 100, 512 << 30
	// leastHeaders bounds the bytes of an archive that are not file content. If headersRatio
	// times the size of the packed data is more, it is the limit instead, up to mostHeaders.
	// Usual tools write 512 to 2,560 bytes for a file, and packing makes them 40 times
	// smaller. Parsing a record of six bytes takes about 45 ns.
	leastHeaders, headersRatio, mostHeaders = 512 << 20, 100, 64 << 30
	// steps bounds the names that are looked up to find the directories of a layer's
	// files. 4 million files take 40 million steps at a depth of ten.
	steps = 64 << 20
	// text bounds the bytes of a manifest, an index or a configuration, and values its
	// JSON values: three bytes of JSON may take 120 bytes of memory. An image of 500
	// layers has 3,000.
	text, values = 8 << 20, 256 << 10
	// texts bounds the total bytes of the manifests, indexes and configurations that are
	// decoded for one archive. An archive may name the same one many times. Decoding that
	// many bytes takes about three seconds.
	texts = 256 << 20
	// layers bounds the layers of an image. The kernel's overlayfs has the same limit.
	layers = 500
	// leastWindow bounds the window of zstd in bytes. A decompressor allocates the window
	// at once. Tools for images use 8 MiB. If windowRatio times the size of the packed data
	// is more, it is the limit instead, up to the most that the reference decompressor
	// accepts.
	leastWindow, windowRatio, mostWindow = 32 << 20, 4, 128 << 20
	// mostTimes bounds the multiple of the limits that a user may ask for.
	mostTimes = 1000
)

// ErrExceeded is wrapped by every error about an exceeded limit.
var ErrExceeded = errors.New("the image exceeds its budget")

// Budget is a multiple of the limits. The zero value is the limits themselves. The Check
// methods return an error that wraps ErrExceeded if a value is beyond its limit.
type Budget struct{ times int64 }

// Set sets the multiple of the limits from the value of a flag, 1 to mostTimes.
func (b *Budget) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > mostTimes {
		return fmt.Errorf("%q times the limits on images: give 1 to %d", text, mostTimes)
	}
	b.times = n
	return nil
}

// Times returns the multiple.
func (b Budget) Times() int { return int(b.of(1)) }

func (b Budget) of(n int64) int64 { return n * max(b.times, 1) }

// scaled returns the limit for packed data of a size in bytes.
func (b Budget) scaled(least, ratio, most, packed int64) int64 {
	return b.of(min(max(least, min(packed, math.MaxInt64/ratio)*ratio), most))
}

// exceeded returns the error for a limit, such as "4 files".
func (b Budget) exceeded(limit string, args ...any) error {
	return b.exceededBy(0, limit, args...)
}

// exceededBy returns the error for a limit. Its advice is at least the multiple times of
// the limits, which the image needs; 0 means that the multiple is unknown.
func (b Budget) exceededBy(times int64, limit string, args ...any) error {
	again := min(max(2*b.of(1), times), mostTimes)
	return fmt.Errorf("%w: more than %s; check where it comes from, or raise all limits with --image-budget %d", ErrExceeded, fmt.Sprintf(limit, args...), again)
}

// CheckFiles checks the number of files of a layer.
func (b Budget) CheckFiles(n int64) error {
	if n > b.of(files) {
		return b.exceeded("%d files", b.of(files))
	}
	return nil
}

// CheckPath checks a path.
func (b Budget) CheckPath(name string) error {
	if int64(len(name)) > path {
		return b.exceeded("%d bytes of a path", path)
	}
	return nil
}

// Text returns the largest size of a manifest, an index or a configuration, in bytes.
func (b Budget) Text() int64 { return b.of(text) }

// CheckTextSize checks the size of a manifest, an index or a configuration.
func (b Budget) CheckTextSize(size int64) error {
	if size > b.Text() {
		return b.exceeded("%d bytes of a manifest or configuration", b.Text())
	}
	return nil
}

// CheckText checks a manifest, an index or a configuration before it is decoded.
func (b Budget) CheckText(content []byte) error {
	if err := b.CheckTextSize(int64(len(content))); err != nil {
		return err
	}
	if all, _ := count(content); all > b.of(values) {
		return b.exceeded("%d values in a manifest or configuration", b.of(values))
	}
	return nil
}

// count estimates the number of values in JSON by its commas and opening brackets, which
// are at most one fewer. It also returns the number of objects.
func count(content []byte) (all, objects int64) {
	quoted := false
	for i := 0; i < len(content); i++ {
		switch c := content[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case !quoted && (c == ',' || c == '{' || c == '['):
			all++
			if c == '{' {
				objects++
			}
		}
	}
	return all, objects
}

// CheckLayers checks the number of layers of an image.
func (b Budget) CheckLayers(n int) error {
	if int64(n) > b.of(layers) {
		return b.exceeded("%d layers", b.of(layers))
	}
	return nil
}

// Layer counts what a reader uses for one layer, file system or archive, and adds it to
// the count of its image. It is not safe for concurrent use.
type Layer struct {
	Budget
	// packed is the size of the packed data in bytes, so far for a stream. stated is the
	// size that the sender of a stream states, and otherwise 0. table is the packed size of
	// the table of contents, or 0 if all of the data is read. ratio is keptRatio or
	// tableRatio.
	packed, stated, table, ratio             int64
	files, kept, content, read, steps, texts int64
	// headed counts the bytes of the archive that are not file content. due is the number of
	// content bytes of the current file that have not been read yet.
	headed, due int64
	image       *Image
}

// Layer returns a count for packed data of a size in bytes.
func (b Budget) Layer(packed int64) *Layer {
	return (&Layer{Budget: b, packed: packed, ratio: keptRatio}).Of(&Image{})
}

// Stream returns a count for packed data that arrives through Packed. Its bytes raise the
// limits as they come, because only the sender states the size.
func (b Budget) Stream(stated int64) *Layer {
	return (&Layer{Budget: b, stated: stated, ratio: keptRatio}).Of(&Image{})
}

// Table returns a count for a layer that is read by its table of contents. packed is the
// packed size of the table in bytes, and layer that of the layer.
func (b Budget) Table(packed, layer int64) *Layer {
	return (&Layer{Budget: b, packed: layer, table: packed, ratio: tableRatio}).Of(&Image{})
}

const (
	// fileKept is the memory for a file in bytes, without its name. dirKept is the
	// memory for a directory.
	fileKept = 208
	dirKept  = 640
	// valueKept is the memory in bytes for a value of a table of contents. objectKept is the
	// additional memory for an object, such as an entry.
	valueKept, objectKept = 32, 320
	// paxXattr begins the names of records that hold extended attributes.
	paxXattr = "SCHILY.xattr."
	// paxSparse begins the names of records of a sparse file.
	paxSparse = "GNU.sparse."
)

// Next returns the next header of an archive. The error for a header that archive/tar
// refuses to keep in memory states the limit, which no option raises.
func Next(archive *tar.Reader) (*tar.Header, error) {
	header, err := archive.Next()
	if errors.Is(err, tar.ErrFieldTooLong) {
		err = fmt.Errorf("a name or the records of a header have more than 1 MiB: %w", err)
	}
	return header, err
}

// Entry counts an entry of an archive, and the content that its header claims. In a
// stream it counts only the claims of sparse files. Other files cannot claim more content
// than the archive has bytes, which Reader counts.
func (l *Layer) Entry(header *tar.Header) error {
	if err := errors.Join(l.CheckFiles(l.files+1), l.CheckPath(header.Name), l.CheckPath(header.Linkname)); err != nil {
		return err
	}
	if err := l.addFile(); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeDir:
		size := 0
		for name, value := range header.PAXRecords {
			if strings.HasPrefix(name, paxXattr) {
				size += len(name) + len(value)
			}
		}
		return l.Directory(len(header.Name) + size)
	case tar.TypeSymlink, tar.TypeLink:
		return l.Keep(fileKept + len(header.Name) + 2*len(header.Linkname))
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse, '\x00':
		if !isSparse(header) {
			l.due = header.Size
		}
		if l.stated != 0 && !isSparse(header) {
			break
		}
		if err := l.Content(header.Size); err != nil {
			return err
		}
	}
	return l.Keep(fileKept + len(header.Name))
}

func isSparse(header *tar.Header) bool {
	if header.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for name := range header.PAXRecords {
		if strings.HasPrefix(name, paxSparse) {
			return true
		}
	}
	return false
}

// Directory counts a directory, and the bytes of its name and attributes.
func (l *Layer) Directory(bytes int) error { return l.Keep(dirKept + bytes) }

// Keep counts bytes that the reader keeps about the files.
func (l *Layer) Keep(bytes int) error {
	packed := cmp.Or(l.table, l.packed)
	most := l.scaled(leastKept, l.ratio, mostKept, packed)
	if int64(bytes) > most-l.kept {
		return l.exceeded("%d MB of names, links and attributes in %d packed bytes", most>>20, packed)
	}
	return l.keep(int64(bytes))
}

// Window returns the largest permitted window of zstd in bytes.
func (l *Layer) Window() int64 {
	return l.scaled(leastWindow, windowRatio, mostWindow, max(l.packed, l.stated))
}

// ExceededWindow returns the error for a window larger than Window.
func (l *Layer) ExceededWindow() error {
	return l.exceeded("%d MB of memory to unpack %d bytes of zstd", l.Window()>>20, max(l.packed, l.stated))
}

// Content counts bytes of files.
func (l *Layer) Content(bytes int64) error {
	return l.unpacked(&l.content, &l.image.content, bytes)
}

// unpacked counts unpacked bytes in a sum of the layer and one of its image.
func (l *Layer) unpacked(sum *int64, all *atomic.Int64, bytes int64) error {
	most := l.scaled(leastContent, contentRatio, mostContent, l.packed)
	if bytes < 0 {
		return l.exceeded("%d MB, unpacked from %d bytes", most>>20, l.packed)
	}
	if bytes > most-*sum {
		return l.exceededBy((*sum+bytes-1)/(most/l.of(1))+1, "%d MB, unpacked from %d bytes", most>>20, l.packed)
	}
	*sum += bytes
	return l.unpackedOf(all, bytes)
}

// Text counts a manifest, an index or a configuration that is about to be decoded.
func (l *Layer) Text(content []byte) error {
	if l.texts += int64(len(content)); l.texts > l.of(texts) {
		return l.exceeded("%d MB of manifests and configurations", l.of(texts)>>20)
	}
	return l.CheckText(content)
}

// TableText counts a table of contents that is about to be decoded.
func (l *Layer) TableText(content []byte) error {
	all, objects := count(content)
	return l.Keep(int(valueKept*all + objectKept*objects))
}

// Step counts one name that is looked up.
func (l *Layer) Step() error {
	if l.steps >= l.of(steps) {
		return l.exceeded("%d names in the paths of its files", l.of(steps))
	}
	return l.step()
}

// Packed returns a reader of packed data whose bytes raise the limits. It is for data of
// which only the sender states the size.
func (l *Layer) Packed(from io.Reader) io.Reader {
	return reader{from, func(bytes int64) error {
		l.packed += bytes
		l.image.grow(bytes, l.ratio*bytes)
		return nil
	}}
}

// Archive returns a reader of an archive that counts all bytes except file content. Its
// caller passes each header to Entry before it reads the file's content.
func (l *Layer) Archive(from io.Reader) io.Reader { return reader{from, l.headers} }

// headers counts the next bytes of an archive, except file content. The data
// of a sparse file counts as headers, because its header does not state the size without
// holes. So sparse files fail if that data is larger than leastHeaders and compressed by a
// factor of more than headersRatio.
func (l *Layer) headers(bytes int64) error {
	content := min(bytes, l.due)
	l.due -= content
	bytes -= content
	if most := l.scaled(leastHeaders, headersRatio, mostHeaders, l.packed); bytes > most-l.headed {
		return l.exceeded("%d MB of headers, unpacked from %d bytes", most>>20, l.packed)
	}
	return l.headersOf(bytes)
}

// Reader returns a reader that counts the bytes of the unpacked data.
func (l *Layer) Reader(from io.Reader) io.Reader {
	return reader{from, func(bytes int64) error { return l.unpacked(&l.read, &l.image.read, bytes) }}
}

// reader counts what is read, until count returns an error.
type reader struct {
	from  io.Reader
	count func(bytes int64) error
}

func (r reader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if full := r.count(int64(n)); full != nil {
		return 0, full // callers like io.ReadFull ignore the error of a complete read
	}
	return n, err
}
