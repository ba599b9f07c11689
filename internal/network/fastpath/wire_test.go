package fastpath

import (
	"bytes"
	"net/netip"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

func somePreamble() preamble {
	return preamble{
		from: 3, to: 7, source: netip.MustParseAddrPort("10.42.3.10:40000"), target: netip.MustParseAddrPort("10.42.7.20:80"),
		nonce: challenge{1, 2, 3}, challenge: challenge{4, 5, 6},
	}
}

func keysOf(key []byte) func(int) []byte { return func(int) []byte { return key } }

func TestPreambleNamesDestination(t *testing.T) {
	key := bytes.Repeat([]byte("k"), 32)
	want := somePreamble()
	b := want.encode(key)
	got, _, err := decodePreamble(&b, want.challenge, keysOf(key))
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestPreambleIsValidOnceAndUnchanged(t *testing.T) {
	key := bytes.Repeat([]byte("k"), 32)
	p := somePreamble()
	b := p.encode(key)
	if _, _, err := decodePreamble(&b, challenge{9}, keysOf(key)); err == nil {
		t.Error("it answers another challenge")
	}
	if _, _, err := decodePreamble(&b, p.challenge, keysOf([]byte("another key"))); err == nil {
		t.Error("it is good for another pair of nodes")
	}
	if _, _, err := decodePreamble(&b, p.challenge, func(int) []byte { return nil }); err == nil {
		t.Error("it is good from a node that is none")
	}
	for i := range b {
		changed := b
		changed[i] ^= 1
		if _, _, err := decodePreamble(&changed, p.challenge, keysOf(key)); err == nil {
			t.Errorf("byte %d can be changed", i)
		}
	}
}

func TestAnswerMatchesItsPreamble(t *testing.T) {
	key := bytes.Repeat([]byte("k"), 32)
	p := somePreamble()
	asked := p.encode(key)
	answer := encodeAnswer(verdictConnected, key, &asked)
	if v, err := decodeAnswer(&answer, key, &asked); err != nil || v != verdictConnected {
		t.Errorf("%d, %v", v, err)
	}
	for i := range answer {
		changed := answer
		changed[i] ^= 1
		if _, err := decodeAnswer(&changed, key, &asked); err == nil {
			t.Errorf("byte %d can be changed", i)
		}
	}
	p.nonce[0]++
	other := p.encode(key)
	if _, err := decodeAnswer(&answer, key, &other); err == nil {
		t.Error("it answers another preamble")
	}
}

func TestEachDirectionHasItsOwnKey(t *testing.T) {
	a, err1 := pairKey(make([]byte, 32), 1, 2)
	b, err2 := pairKey(make([]byte, 32), 2, 1)
	if err1 != nil || err2 != nil || bytes.Equal(a, b) {
		t.Errorf("%x, %x, %v, %v", a, b, err1, err2)
	}
}

func FuzzPreamble(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzzbound.Watch(t)
		var whole [preambleLen]byte
		copy(whole[:], b)
		if _, _, err := decodePreamble(&whole, challenge{}, keysOf([]byte("k"))); err == nil {
			t.Error("forged")
		}
	})
}
