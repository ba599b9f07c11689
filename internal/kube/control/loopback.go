package control

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"

	"berth.dev/berth/internal/base/pki"
)

// loopback holds the credentials for kube-apiserver's requests to itself. The client is the
// privileged user system:apiserver, with a token that never leaves the process. The
// server's certificate for it is generated in the process.
type loopback struct {
	authority   []byte
	certificate pki.Pair
	token       string
	host        string
}

// newLoopback prepares the client of the server that will listen at addr.
func newLoopback(addr net.Addr) (*loopback, error) {
	listen, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return nil, fmt.Errorf("read the listener's address (%s): %w", addr, err)
	}
	ip := listen.Addr().Unmap()
	if ip.IsUnspecified() {
		// The name localhost would need a resolver.
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	authority, err := pki.NewAuthority(server.LoopbackClientServerNameOverride + "-ca")
	if err != nil {
		return nil, err
	}
	certificate, err := authority.Issue(pki.Identity{
		CommonName: server.LoopbackClientServerNameOverride,
		Names:      []string{server.LoopbackClientServerNameOverride},
	})
	if err != nil {
		return nil, err
	}
	return &loopback{
		authority:   authority.Cert,
		certificate: certificate,
		token:       string(uuid.NewUUID()),
		host:        "https://" + net.JoinHostPort(ip.String(), strconv.Itoa(int(listen.Port()))),
	}, nil
}

// config returns the configuration of a client of kube-apiserver without a limit of
// requests per second.
func (l *loopback) config(userAgent string) *rest.Config {
	return &rest.Config{
		Host:        l.host,
		BearerToken: l.token,
		UserAgent:   userAgent,
		QPS:         -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAData:     l.authority,
			ServerName: server.LoopbackClientServerNameOverride,
		},
		// The objects are large, and the network is the process itself.
		DisableCompression: true,
		ContentConfig:      rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
	}
}

// applyTo adds the certificate to a server's configuration, and sets the configuration of
// the server's own client.
func (l *loopback) applyTo(config *server.Config) error {
	provider, err := dynamiccertificates.NewStaticSNICertKeyContent(
		"loopback", l.certificate.Cert, l.certificate.Key, server.LoopbackClientServerNameOverride)
	if err != nil {
		return err
	}
	// First, so that no other certificate can claim the name.
	config.SecureServing.SNICerts = append(
		[]dynamiccertificates.SNICertKeyContentProvider{provider}, config.SecureServing.SNICerts...)
	config.LoopbackClientConfig = l.config("")
	return nil
}
