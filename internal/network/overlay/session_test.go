package overlay

import (
	"encoding/binary"
	"math/big"
	"math/rand/v2"
	"testing"
)

func testSession(t testing.TB, purpose string) *session {
	t.Helper()
	s, err := newSession(testKey, purpose)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTagIsTheHashAndThePad computes tags in another way: with big integers, and
// each pad from a fresh session.
func TestTagIsTheHashAndThePad(t *testing.T) {
	s := testSession(t, "one")
	for i := range 300 {
		number := uint64(i)
		if i%10 == 9 {
			number = rand.Uint64() // out of order
		}
		head := noise(wireLen + i%(maxCovered+1))
		head[wireLen-1] = byte(i)
		sum := new(big.Int)
		add := func(word uint64, key hashKey) {
			k := new(big.Int).SetUint64(key.high)
			k.Lsh(k, 64).Add(k, new(big.Int).SetUint64(key.low))
			sum.Add(sum, k.Mul(k, new(big.Int).SetUint64(word)))
		}
		add(uint64(len(head)+7), s.keys[0])
		for j, rest := 1, append(append([]byte(nil), head[tagLen:]...), make([]byte, 7)...); len(rest) >= 8; j, rest = j+1, rest[8:] {
			add(binary.LittleEndian.Uint64(rest), s.keys[j])
		}
		sum.Rsh(sum, 64).And(sum, new(big.Int).SetUint64(1<<64-1))
		want := sum.Uint64() + testSession(t, "one").pad(number)
		if got := s.tag(number, head, len(head)+7); got != want {
			t.Fatalf("number %d, %d bytes: tag %x, want %x", number, len(head), got, want)
		}
	}
}

func TestSessionsDiffer(t *testing.T) {
	head := noise(wireLen + 40)
	if testSession(t, "one").tag(5, head, 100) == testSession(t, "another").tag(5, head, 100) {
		t.Error("two sessions give the same tag")
	}
}

// TestWindow takes numbers in random order, each twice, and compares the result
// with a set of all numbers.
func TestWindow(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var w window
	seen := map[uint64]bool{}
	top := uint64(0)
	for range 200_000 {
		number := top + random.Uint64N(64)
		switch random.IntN(20) {
		case 0:
			number = top + random.Uint64N(3*windowSize)
		case 1, 2, 3, 4, 5, 6, 7, 8:
			number -= min(number, random.Uint64N(2*windowSize))
		}
		want := !seen[number] && number+windowSize >= top
		if number+windowSize >= top && w.number(uint32(number)) != number {
			t.Fatalf("number %d is taken for %d", number, w.number(uint32(number)))
		}
		if got := w.take(number); got != want {
			t.Fatalf("number %d, top %d: taken %v, want %v", number, top, got, want)
		}
		seen[number] = true
		top = max(top, number+1)
	}
}

func BenchmarkTag(b *testing.B) {
	s := testSession(b, "one")
	head := noise(wireLen + 52)
	head[atHeaders] = 52
	for b.Loop() {
		s.seal(head, 1472)
	}
}
