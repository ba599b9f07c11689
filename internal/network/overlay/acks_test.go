package overlay

import (
	"encoding/binary"
	"slices"
	"testing"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil/fuzzbound"
)

// ackOf returns an acknowledgement as the queue passes it to send.
func ackOf(ipv6 bool, number uint32) []byte {
	frame := superPacket(ipv6, 0, nil)
	frame[vnetGSOType] = gsoNone
	tcp := frame[len(frame)-32:]
	tcp[tcpFlagsOffset] = 0x10
	binary.BigEndian.PutUint32(tcp[8:], number)
	binary.BigEndian.PutUint32(tcp[minTCPHeader:], 0x0101080a)
	return append(make([]byte, headroom), frame...)
}

func TestPureAck(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		good := ackOf(ipv6, 7)[headroom:]
		tcp := len(good) - 32
		if number, ok := pureAck(good); !ok || number != 7 {
			t.Errorf("IPv6 %v: an acknowledgement of 7 counts as one of %d (%v)", ipv6, number, ok)
		}
		for what, change := range map[string]func(frame []byte){
			"FIN":             func(f []byte) { f[tcp+tcpFlagsOffset] |= tcpFIN },
			"ECE":             func(f []byte) { f[tcp+tcpFlagsOffset] |= 0x40 },
			"AccECN":          func(f []byte) { f[tcp+12] |= 1 },
			"another option":  func(f []byte) { f[tcp+minTCPHeader+2] = 5 },
			"data":            func(f []byte) { f[tcp+12] = 0x50 },
			"UDP":             func(f []byte) { f[linux.VnetHeaderLen+6], f[linux.VnetHeaderLen+9] = 17, 17 },
			"another version": func(f []byte) { f[linux.VnetHeaderLen] = 0x10 },
			"super-packet":    func(f []byte) { f[vnetGSOType] = gsoTCP4 },
		} {
			frame := slices.Clone(good)
			change(frame)
			if _, ok := pureAck(frame); ok {
				t.Errorf("IPv6 %v: %s counts as a mere acknowledgement", ipv6, what)
			}
		}
		for length := range good {
			pureAck(good[:max(length, linux.VnetHeaderLen+minIPv4Header)])
		}
	}
}

func TestBulkAcknowledgementsAreDelayed(t *testing.T) {
	to := new(peer)
	for _, ipv6 := range []bool{false, true} {
		h := new(ackHolder)
		var sent []uint32
		send := func(_ *peer, buffer []byte) { sent = append(sent, heldNumber(buffer)) }
		give := func(number uint32) {
			if buffer := ackOf(ipv6, number); !h.take(to, buffer, send) {
				send(to, buffer)
			}
			h.flushed()
		}
		expect := func(what string, want ...uint32) {
			t.Helper()
			if !slices.Equal(sent, want) {
				t.Errorf("IPv6 %v: %s: sent %d, want %d", ipv6, what, sent, want)
			}
			sent = nil
		}
		start := ^uint32(0) - 50<<10 // the numbers wrap around
		give(start)
		expect("the first", start)
		give(start + 1000)
		expect("little data", start+1000)
		// The speed of this test decides which of the next ones are held. The
		// sent numbers must never decrease, and must end with the last one.
		for i := range uint32(20) {
			give(start + 1000 + (i+1)*bulkAck)
		}
		for h.due(send) >= 0 {
		}
		last := start + 1000 + 20*bulkAck
		if len(sent) == 0 || sent[len(sent)-1] != last || !slices.IsSortedFunc(sent, func(a, b uint32) int { return int(int32(a - b)) }) {
			t.Errorf("IPv6 %v: sent %d, want the last to be %d", ipv6, sent, last)
		}
		sent = nil
		give(last)
		give(last)
		expect("the same again", last, last)
		if left := h.due(send); left >= 0 || h.held != 0 {
			t.Errorf("IPv6 %v: %d are still held", ipv6, h.held)
		}
	}
}

// FuzzPureAck gives the holder arbitrary packets of a device.
func FuzzPureAck(f *testing.F) {
	f.Add(ackOf(false, 1))
	f.Add(ackOf(true, 1))
	known, _ := twoNodes(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzzbound.Watch(t)
		if len(data) <= headroom+linux.VnetHeaderLen || len(data) > largestAck || known.route(data[headroom+linux.VnetHeaderLen:]) == nil {
			return
		}
		new(ackHolder).take(new(peer), data, func(*peer, []byte) {})
	})
}
