package gunzip

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func pack(t testing.TB, level int, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, level)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// contents are of many kinds: nothing, zeros, noise, words, and what repeats after
// all distances.
func contents(random *rand.Rand) [][]byte {
	all := [][]byte{nil, {7}, make([]byte, 1<<20), []byte(strings.Repeat("layers ", 100_000))}
	noise := make([]byte, 700_000)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	skewed := make([]byte, 700_000)
	for i := range skewed {
		skewed[i] = byte(random.ExpFloat64() * 9)
	}
	var repeats []byte
	for len(repeats) < 1<<20 {
		if distance := 1 + random.IntN(40_000); distance < len(repeats) && random.IntN(4) > 0 {
			at := len(repeats) - distance
			repeats = append(repeats, repeats[at:at+min(distance, random.IntN(600))]...)
		} else {
			repeats = append(repeats, noise[:random.IntN(60)]...)
		}
	}
	return append(all, noise, skewed, repeats)
}

func TestUnpacksWhatWasPacked(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for n, content := range contents(random) {
		for _, level := range []int{gzip.NoCompression, gzip.BestSpeed, gzip.DefaultCompression, gzip.BestCompression, gzip.HuffmanOnly} {
			packed := pack(t, level, content)
			for kind, from := range map[string]io.Reader{
				"at once": bytes.NewReader(packed), "with its end": iotest.DataErrReader(bytes.NewReader(packed)),
				"by halves": iotest.HalfReader(bytes.NewReader(packed)),
			} {
				got, err := io.ReadAll(NewReader(from))
				if err != nil || !bytes.Equal(got, content) {
					t.Errorf("content %d, level %d, read %s: %d bytes, %v", n, level, kind, len(got), err)
				}
			}
		}
		if len(content) < 1<<20 {
			got, err := io.ReadAll(NewReader(iotest.OneByteReader(bytes.NewReader(pack(t, 6, content)))))
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("content %d, byte by byte: %d bytes, %v", n, len(got), err)
			}
		}
	}
}

func TestUnpacksAllMembers(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var packed, want []byte
	for range 3000 {
		part := make([]byte, random.IntN(3)*random.IntN(600))
		for i := range part {
			part[i] = byte(random.IntN(9))
		}
		want, packed = append(want, part...), append(packed, pack(t, random.IntN(10), part)...)
	}
	got, err := io.ReadAll(NewReader(bytes.NewReader(packed)))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d, and %v", len(got), len(want), err)
	}
	// A match of the second member must not reach into the first.
	second := member(func(b *bitWriter) []byte {
		b.put(1, 1)
		b.put(1, 2)
		b.put(0b1000000, 7) // length 3
		b.put(0, 5)         // distance 1
		b.put(0, 7)
		return []byte("aaa")
	})
	if _, err := io.ReadAll(NewReader(bytes.NewReader(append(pack(t, 6, []byte("a")), second...)))); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a member that uses the one before gives %v", err)
	}
}

func TestReadsHeaders(t *testing.T) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Header = gzip.Header{Name: strings.Repeat("n", 5000), Comment: "a comment", Extra: []byte("extra"), ModTime: time.Unix(1, 0)}
	_, _ = w.Write([]byte("content"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(NewReader(&out))
	if err != nil || string(got) != "content" {
		t.Errorf("%q, %v", got, err)
	}
	summed := pack(t, 6, []byte("content"))
	summed[3] |= hasSum
	sum := crc32.ChecksumIEEE(summed[:10])
	summed = slices.Insert(summed, 10, byte(sum), byte(sum>>8))
	if got, err := io.ReadAll(NewReader(bytes.NewReader(summed))); err != nil || string(got) != "content" {
		t.Errorf("with a checksum: %q, %v", got, err)
	}
	summed[10]++
	if _, err := io.ReadAll(NewReader(bytes.NewReader(summed))); !errors.Is(err, ErrCorrupt) {
		t.Errorf("with a wrong checksum: %v", err)
	}
}

// bitWriter writes what compress/flate never would.
type bitWriter struct {
	out   []byte
	bits  uint64
	count uint
}

func (b *bitWriter) put(value uint64, n uint) {
	b.bits |= value << b.count
	for b.count += n; b.count >= 8; b.count -= 8 {
		b.out = append(b.out, byte(b.bits))
		b.bits >>= 8
	}
}

// code is the one of a symbol among codes of such lengths, first bit first.
func (b *bitWriter) code(lengths []uint8, symbol int) {
	code := 0
	for n := uint8(1); n <= lengths[symbol]; n++ {
		code <<= 1
		for s, length := range lengths {
			if length == n && (n < lengths[symbol] || s < symbol) {
				code++
			}
		}
	}
	for i := int(lengths[symbol]) - 1; i >= 0; i-- {
		b.put(uint64(code>>i&1), 1)
	}
}

// member is a file of gzip with these blocks, and the content that they say they have.
func member(blocks func(*bitWriter) (content []byte)) []byte {
	b := &bitWriter{out: []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}}
	content := blocks(b)
	b.put(0, (8-b.count)%8)
	b.put(uint64(crc32.ChecksumIEEE(content)), 32)
	b.put(uint64(len(content)), 32)
	return b.out
}

// codes returns lengths of codes that are complete, of count symbols up to maxBits.
func codes(random *rand.Rand, count int) []uint8 {
	leaves := []uint8{1, 1}
	for len(leaves) < count {
		i := random.IntN(len(leaves))
		if random.IntN(2) == 0 { // deep ones more often
			i = len(leaves) - 1
		}
		if leaves[i] < maxBits {
			leaves[i]++
			leaves = append(leaves, leaves[i])
		}
	}
	random.Shuffle(count, func(i, j int) { leaves[i], leaves[j] = leaves[j], leaves[i] })
	return leaves
}

// TestUnpacksAllCodes has blocks with codes of all lengths, which those who pack
// rarely make.
func TestUnpacksAllCodes(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		literals, distances := codes(random, 286), codes(random, 30)
		if random.IntN(4) == 0 {
			distances = append(slices.Repeat([]uint8{0}, random.IntN(9)), 1)
		}
		var content []byte
		packed := member(func(b *bitWriter) []byte {
			for block := range 3 {
				last := uint64(0)
				if block == 2 {
					last = 1
				}
				b.put(last, 1)
				b.put(2, 2)
				b.put(29, 5)
				b.put(uint64(len(distances)-1), 5)
				b.put(15, 4)
				// 13 symbols of four bits and 6 of five.
				var lengths [19]uint8
				for i := range lengths {
					lengths[i] = 4
					if i >= 13 {
						lengths[i] = 5
					}
				}
				for _, i := range lengthOrder {
					b.put(uint64(lengths[i]), 3)
				}
				for _, n := range slices.Concat(literals, distances) {
					b.code(lengths[:], int(n))
				}
				for range random.IntN(900) {
					symbol := random.IntN(286)
					if symbol < endBlock {
						b.code(literals, symbol)
						content = append(content, byte(symbol))
						continue
					}
					d := random.IntN(len(distances))
					meaning := distanceSymbols[d]
					far := random.IntN(1 << meaning.extra)
					distance := int(meaning.entry>>valueShift) + far
					if symbol == endBlock || distances[d] == 0 || distance > len(content) {
						continue
					}
					b.code(literals, symbol)
					length := literalSymbols[symbol]
					more := random.IntN(1 << length.extra)
					b.put(uint64(more), uint(length.extra))
					b.code(distances, d)
					b.put(uint64(far), uint(meaning.extra))
					for range int(length.entry>>valueShift) + more {
						content = append(content, content[len(content)-distance])
					}
				}
				b.code(literals, endBlock)
			}
			return content
		})
		reference, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed[10:])))
		if err != nil || !bytes.Equal(reference, content) {
			t.Fatalf("the test packs wrong: %v", err)
		}
		if got, err := io.ReadAll(NewReader(bytes.NewReader(packed))); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("%d bytes, want %d, and %v", len(got), len(content), err)
		}
	}
}

func TestNoticesDamage(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	content := []byte(strings.Repeat("what is damaged has to be noticed; ", 40))
	for i := range content {
		if random.IntN(3) == 0 {
			content[i] = byte(random.Uint32())
		}
	}
	for _, level := range []int{gzip.NoCompression, gzip.DefaultCompression, gzip.HuffmanOnly} {
		packed := pack(t, level, content)
		for n := range packed {
			got, err := io.ReadAll(NewReader(bytes.NewReader(packed[:n])))
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("level %d: the first %d of %d bytes give %v", level, n, len(packed), err)
			}
			if !bytes.HasPrefix(content, got) {
				t.Errorf("level %d: the first %d of %d bytes give something else", level, n, len(packed))
			}
		}
		for n := 10; n < len(packed); n++ { // what a header says otherwise has no sum
			changed := slices.Clone(packed)
			changed[n] ^= 1 << random.IntN(8)
			same(t, changed)
			if got, err := io.ReadAll(NewReader(bytes.NewReader(changed))); err == nil && !bytes.Equal(got, content) {
				t.Errorf("level %d: nobody notices that byte %d is another", level, n)
			}
		}
		if _, err := io.ReadAll(NewReader(bytes.NewReader(append(packed, "more"...)))); err == nil {
			t.Error("nobody notices what follows")
		}
	}
	broken := errors.New("broken")
	for _, n := range []int{0, 5, 30} {
		from := io.MultiReader(bytes.NewReader(pack(t, 6, content)[:n]), iotest.ErrReader(broken))
		if _, err := io.ReadAll(NewReader(from)); !errors.Is(err, broken) {
			t.Errorf("an error after %d bytes becomes %v", n, err)
		}
	}
	if _, err := io.ReadAll(NewReader(nothing{})); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a reader that gives nothing gives %v", err)
	}
}

type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, nil }

// same compares with compress/gzip.
func same(t *testing.T, packed []byte) {
	t.Helper()
	got, err := io.ReadAll(NewReader(bytes.NewReader(packed)))
	var want []byte
	z, wantErr := gzip.NewReader(bytes.NewReader(packed))
	if wantErr == nil {
		want, wantErr = io.ReadAll(z)
	}
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%v, and compress/gzip says %v", err, wantErr)
	}
	if err == nil && !bytes.Equal(got, want) {
		t.Fatalf("%d bytes that are others than the %d of compress/gzip", len(got), len(want))
	}
}

// FuzzReader compares blocks with compress/flate, whatever the sums are, and files.
func FuzzReader(f *testing.F) {
	for _, content := range contents(rand.New(rand.NewPCG(9, 10))) {
		content = content[:min(len(content), 2000)]
		f.Add(pack(f, 6, content))
		f.Add(pack(f, gzip.HuffmanOnly, content))
		f.Add(pack(f, 0, content))
	}
	f.Add([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 5, 0xe0, 0x81, 8, 0, 0, 0, 0, 0, 0x20, 0x7f, 0xeb, 0x0b, 0, 0})
	f.Fuzz(func(t *testing.T, packed []byte) {
		// compress/gzip refuses names of more than 511 bytes.
		if len(packed) > 3 && packed[3] == 0 {
			same(t, packed)
		}
		want, wantErr := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), 1<<22))
		blocks := append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}, packed...)
		got, err := io.ReadAll(io.LimitReader(NewReader(bytes.NewReader(blocks)), 1<<22))
		if wantErr == nil && !bytes.Equal(got, want) {
			t.Fatalf("%d bytes that are others than the %d of compress/flate, and %v", len(got), len(want), err)
		}
		if wantErr != nil && err == nil {
			t.Fatalf("no error, and compress/flate says %v", wantErr)
		}
	})
}
