package lazy

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// transport connects to no address in the refused ranges, whether a registry names
// it in DNS, in a redirect, or as its token service. Requests through the user's
// proxy are not checked, because the proxy makes the connection.
type transport struct {
	direct, proxied http.RoundTripper
	proxy           func(*http.Request) (*url.URL, error)
}

func newTransport(refused []netip.Prefix) http.RoundTripper {
	direct, proxied := docker.DefaultHTTPTransport(nil), docker.DefaultHTTPTransport(nil)
	t := transport{direct: direct, proxied: proxied, proxy: proxied.Proxy}
	direct.Proxy = nil
	dialer := net.Dialer{
		Timeout: idleWithin / 2,
		// The dialer calls Control for each address of a host name.
		Control: func(_, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			for _, prefix := range refused {
				if prefix.Contains(to.Addr().WithZone("")) || prefix.Contains(to.Addr().Unmap()) {
					return fmt.Errorf("%w: %s is not an address for it: pods may not reach %s", errRefused, to.Addr(), prefix)
				}
			}
			return nil
		},
	}
	direct.DialContext = dialer.DialContext
	return t
}

// RoundTrip sends a request.
func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
	proxy, err := t.proxy(request)
	if err != nil {
		return nil, err
	}
	if proxy != nil {
		return t.proxied.RoundTrip(request)
	}
	return t.direct.RoundTrip(request)
}
