package erofs

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// An image is followed by a checksum of each block and a footer. A reader verifies
// every block that it reads, so that it detects damage without reading the whole
// image first. This detects faulty storage, not an attacker who can write to it.
const (
	footerMagic = "berth layer sums"
	footerSize  = len(footerMagic) + 8 // the number of blocks, and the checksum of the preceding part
	sumSize     = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(block []byte) uint32 { return crc32.Checksum(block, castagnoli) }

// sums holds the checksums of the blocks that a Writer wrote.
type sums struct {
	// pages holds the checksums by the number of the first block, divided by pageSums. It
	// lacks blocks whose content comes later: a table of contents may claim any number of
	// them.
	pages map[int64]*[pageSums]uint32
	// patched holds the numbers of blocks that were changed after note.
	patched map[int64]bool
}

// pageSums is the number of checksums in one element of pages.
const pageSums = 1024

// note records whole blocks that were written at an offset.
func (s *sums) note(data []byte, at int64) {
	for i := 0; i < len(data); i += BlockSize {
		s.set((at+int64(i))/BlockSize, checksum(data[i:i+BlockSize]))
	}
}

func (s *sums) set(number int64, sum uint32) {
	if s.pages == nil {
		s.pages = map[int64]*[pageSums]uint32{}
	}
	page := s.pages[number/pageSums]
	if page == nil {
		page = new([pageSums]uint32)
		s.pages[number/pageSums] = page
	}
	page[number%pageSums] = sum
}

// patch records a change at an offset.
func (s *sums) patch(at int64) {
	if s.patched == nil {
		s.patched = map[int64]bool{}
	}
	s.patched[at/BlockSize] = true
}

// write writes the checksums behind the blocks of an image, which end at an offset.
func (s *sums) write(file *os.File, end int64) error {
	block := make([]byte, BlockSize)
	for number := range s.patched {
		if _, err := file.ReadAt(block, number*BlockSize); err != nil {
			return fmt.Errorf("read image again: %w", err)
		}
		s.set(number, checksum(block))
	}
	sum := crc32.New(castagnoli)
	buffered := bufio.NewWriterSize(io.NewOffsetWriter(file, end), flushSize)
	to := io.MultiWriter(sum, buffered)
	none, blocks := new([pageSums]uint32), end/BlockSize
	encoded := make([]byte, 0, pageSums*sumSize)
	for number := int64(0); number < blocks; number += pageSums {
		page := cmp.Or(s.pages[number/pageSums], none)
		encoded = encoded[:0]
		for _, own := range page[:min(pageSums, blocks-number)] {
			encoded = order.AppendUint32(encoded, own)
		}
		if _, err := to.Write(encoded); err != nil {
			return fmt.Errorf("write checksums: %w", err)
		}
	}
	_, err := to.Write(order.AppendUint32([]byte(footerMagic), uint32(blocks)))
	if err == nil {
		_, err = buffered.Write(order.AppendUint32(nil, sum.Sum32()))
	}
	if err = errors.Join(err, buffered.Flush()); err != nil {
		return fmt.Errorf("write checksums: %w", err)
	}
	return nil
}

// checked reads blocks and verifies their checksums.
type checked struct {
	from   io.ReaderAt
	blocks int64
	// sums holds the checksums. It is nil if there are more than maxSums bytes of them,
	// which are then read again with each block.
	sums []byte
	// damaged, if set, is called for a damaged block.
	damaged func(error)
}

// openChecked returns a reader of the blocks of an image with size bytes in total, and the
// length of the blocks in bytes. It verifies the checksums' own checksum, but no block.
func openChecked(from io.ReaderAt, size int64) (*checked, int64, error) {
	footer := make([]byte, footerSize)
	if size < int64(footerSize) {
		return nil, 0, fmt.Errorf("read checksums: %w", ErrCorrupt)
	}
	if _, err := from.ReadAt(footer, size-int64(footerSize)); err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, fmt.Errorf("read checksums: %w", err)
	}
	blocks := int64(order.Uint32(footer[len(footerMagic):]))
	if !bytes.HasPrefix(footer, []byte(footerMagic)) || blocks*(BlockSize+sumSize)+int64(footerSize) != size {
		return nil, 0, fmt.Errorf("read checksums: the image is not complete: %w", ErrCorrupt)
	}
	c := &checked{from: from, blocks: blocks}
	own, err := c.readSums()
	if err == nil && own != order.Uint32(footer[footerSize-4:]) {
		err = fmt.Errorf("they are wrong: %w", ErrCorrupt)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read checksums: %w", err)
	}
	return c, blocks * BlockSize, nil
}

// maxSums bounds the bytes of checksums in memory, which suffice for 16 GiB of blocks. A
// sparse file could have terabytes of blocks and take no space on disk.
const maxSums = 16 << 20

// readSums reads all checksums and the footer, and returns their checksum. It keeps at most
// maxSums bytes of checksums.
func (c *checked) readSums() (uint32, error) {
	size := c.blocks * sumSize
	sum := crc32.New(castagnoli)
	to := io.Writer(sum)
	var kept bytes.Buffer
	if size <= maxSums {
		kept.Grow(int(size))
		to = io.MultiWriter(sum, &kept)
	}
	tail := io.NewSectionReader(c.from, c.blocks*BlockSize, size+int64(footerSize)-4)
	if n, err := io.CopyN(to, tail, size); err != nil {
		return 0, fmt.Errorf("after %d of %d bytes: %w", n, size, unexpected(err))
	}
	if _, err := io.Copy(sum, tail); err != nil {
		return 0, err
	}
	if size <= maxSums {
		c.sums = kept.Bytes()
	}
	return sum.Sum32(), nil
}

// sumsOf returns the checksums of count blocks from a number on.
func (c *checked) sumsOf(number, count int64) ([]byte, error) {
	if c.sums != nil {
		return c.sums[number*sumSize : (number+count)*sumSize], nil
	}
	sums := make([]byte, count*sumSize)
	if n, err := c.from.ReadAt(sums, c.blocks*BlockSize+number*sumSize); n < len(sums) {
		return nil, fmt.Errorf("read checksums of block %d: %w", number, unexpected(err))
	}
	return sums, nil
}

// OpenChanging opens an image in a file of size bytes whose content is still
// being written. It reads blocks unchecked; the writer must check them.
func OpenChanging(from io.ReaderAt, size int64) (*Image, error) {
	_, blocks, err := openChecked(from, size)
	if err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	return open(from, blocks)
}

// ReadAt reads from the blocks and verifies them. It returns an error that wraps ErrCorrupt
// if a block is damaged or the range is beyond the last block.
func (c *checked) ReadAt(into []byte, at int64) (int, error) {
	if at < 0 || (at+int64(len(into))+BlockSize-1)/BlockSize > c.blocks {
		return 0, fmt.Errorf("read %d bytes at %d: the image ends before: %w", len(into), at, ErrCorrupt)
	}
	done := 0
	for done < len(into) {
		start := at + int64(done)
		rest := into[done:]
		within := int(start % BlockSize)
		if within == 0 && len(rest) >= BlockSize {
			whole := rest[:len(rest)&^(BlockSize-1)]
			if err := c.readBlocks(whole, start); err != nil {
				return done, err
			}
			done += len(whole)
			continue
		}
		var block [BlockSize]byte
		if err := c.readBlocks(block[:], start-int64(within)); err != nil {
			return done, err
		}
		done += copy(rest, block[within:])
	}
	return done, nil
}

func (c *checked) readBlocks(into []byte, at int64) error {
	if n, err := c.from.ReadAt(into, at); n < len(into) {
		return fmt.Errorf("read image at %d: %w", at, unexpected(err))
	}
	sums, err := c.sumsOf(at/BlockSize, int64(len(into)/BlockSize))
	if err != nil {
		return err
	}
	for i := 0; i < len(into); i += BlockSize {
		if checksum(into[i:i+BlockSize]) != order.Uint32(sums[i/BlockSize*sumSize:]) {
			err := fmt.Errorf("read block %d of image: its checksum is wrong: %w", (at+int64(i))/BlockSize, ErrCorrupt)
			if c.damaged != nil {
				c.damaged(err)
			}
			return err
		}
	}
	return nil
}

// OnDamage sets a function that is called for every damaged block that is read.
// Call it before the first read.
func (i *Image) OnDamage(report func(error)) {
	if c, ok := i.from.(*checked); ok {
		c.damaged = report
	}
}

// Verify reads all blocks of an image, and returns the error of the first damaged one.
func (i *Image) Verify() error {
	buffer := make([]byte, flushSize)
	for at := int64(0); at < i.size; at += int64(len(buffer)) {
		buffer = buffer[:min(int64(len(buffer)), i.size-at)]
		if _, err := i.from.ReadAt(buffer, at); err != nil {
			return err
		}
	}
	return nil
}
