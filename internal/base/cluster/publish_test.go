package cluster

import (
	"net/netip"
	"testing"
)

func TestParsePublish(t *testing.T) {
	loopback, pod := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.200.0.2")
	for value, want := range map[string]Publish{
		"8080":                   {Host: 8080, Node: 8080},
		"web=8080":               {Name: "web", Host: 8080, Node: 8080},
		"web.default=8080:80":    {Name: "web.default", Host: 8080, Node: 80},
		"web=10.200.0.2:8080:80": {"web", pod, 8080, 80},
		"8080:80":                {Host: 8080, Node: 80},
		"127.0.0.1:8080":         {"", loopback, 8080, 8080},
		"127.0.0.1:8080:80":      {"", loopback, 8080, 80},
		"[::1]:8080:80":          {"", netip.IPv6Loopback(), 8080, 80},
		"[::1]:8080":             {"", netip.IPv6Loopback(), 8080, 8080},
	} {
		if got, err := ParsePublish(value); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", value, got, err, want)
		}
	}
	for _, value := range []string{"", "0", "65536", "http", "80:", ":80", "0:80", "8080:0", "host:8080:80", "1:2:3", "127.0.0.1:0:80",
		"=8080", "web=", "web", "Web=8080", "web.=8080", "a.b.c=8080", "-web=8080", "web=80=8080", "web/default=8080", "web=127.0.0.1:8080:80", "web=[::1]:8080"} {
		if got, err := ParsePublish(value); err == nil {
			t.Errorf("%q: %+v, want an error", value, got)
		}
	}
}
