package fastpath

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestMetadataNamesPod(t *testing.T) {
	four, ipv6 := netip.MustParseAddr("10.42.0.7"), netip.MustParseAddr("fd42::7")
	for text, want := range map[string]metadata{
		"10.42.0.7 4711":         {Address: four, Network: 4711},
		"10.42.0.7 4711 1048576": {Address: four, Network: 4711, Memory: 1 << 20},
		"10.42.0.7,fd42::7 4711": {Address: four, AddressIPv6: ipv6, Network: 4711},
	} {
		var got metadata
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q is %+v, %v, want %+v", text, got, err, want)
		}
		if back, err := want.MarshalText(); err != nil || string(back) != text {
			t.Errorf("%+v is written %q, %v, want %q", want, back, err, text)
		}
	}
	for _, text := range []string{"", "10.42.0.7", "fd42::7 1", "10.42.0.7, 1", "10.42.0.7,10.42.0.8 1", "10.42.0.7,fd42::7,fd42::8 1", "10.42.0.7 -1", "10.42.0.7 1 x"} {
		var got metadata
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// MarshalText returns the form that the runtime sends.
func (m metadata) MarshalText() ([]byte, error) {
	addresses := m.Address.String()
	if m.AddressIPv6.IsValid() {
		addresses += "," + m.AddressIPv6.String()
	}
	text := fmt.Appendf(nil, "%s %d", addresses, m.Network)
	if m.Memory > 0 {
		text = fmt.Appendf(text, " %d", m.Memory)
	}
	return text, nil
}
