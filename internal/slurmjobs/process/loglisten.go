package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"berth.dev/berth/internal/base/pki"
	"berth.dev/berth/internal/slurmjobs/partitions"
)

// LogListen configures the server for the logs of pods on a host that is no part of the cluster.
type LogListen struct {
	// Address is an address of this host that API servers reach. Without a port, the server
	// takes a free one.
	Address string
	// Certificate is the path of a file with the server's certificate and key in PEM, such as a
	// kubelet's. If it is empty, the server makes its own certificate. API servers verify it
	// only with --kubelet-certificate-authority.
	Certificate string
	// Client is the common name of the API servers' client certificate for kubelets.
	Client string
}

// KubeadmClient is the common name that kubeadm gives the API servers' client certificate.
const KubeadmClient = "kube-apiserver-kubelet-client"

// Check returns an error if the address or the name is invalid.
func (l LogListen) Check() error {
	if l.Client == "" {
		return errors.New("--logs-client: give the common name of the API servers' client certificate: without it, every certificate without a name could read the logs")
	}
	_, err := l.address()
	return err
}

// address parses the address. The port may be zero.
func (l LogListen) address() (netip.AddrPort, error) {
	address, err := netip.ParseAddrPort(l.Address)
	if err != nil {
		var host netip.Addr
		host, err = netip.ParseAddr(l.Address)
		address = netip.AddrPortFrom(host, 0)
	}
	if err != nil || address.Addr().IsUnspecified() || address.Addr().Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("--logs-address %s: give an IP address of this host that the cluster's API servers reach, such as 10.0.0.5 or 10.0.0.5:10350", l.Address)
	}
	return address, nil
}

// Listen starts to listen, and returns the server's configuration. It reads the authority of the API
// servers' certificates from the cluster.
func (l LogListen) Listen(ctx context.Context, config *rest.Config) (*PodLogs, error) {
	address, err := l.address()
	if err != nil {
		return nil, err
	}
	certificate, err := l.certificate(address.Addr())
	if err != nil {
		return nil, err
	}
	authority, err := clientAuthority(ctx, config)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address.String())
	if err != nil {
		return nil, fmt.Errorf("--logs-address: %w", err)
	}
	port := listener.Addr().(*net.TCPAddr).AddrPort().Port()
	return &PodLogs{
		Listener: listener, Address: netip.AddrPortFrom(address.Addr(), port), Certificate: certificate, Authority: authority, Client: l.Client,
	}, nil
}

// certificate returns the certificate of the server.
func (l LogListen) certificate(address netip.Addr) (tls.Certificate, error) {
	if l.Certificate != "" {
		certificate, err := tls.LoadX509KeyPair(l.Certificate, l.Certificate)
		if err != nil {
			return certificate, fmt.Errorf("--logs-cert %s: %w: give a file with a certificate and its key in PEM", l.Certificate, err)
		}
		return certificate, nil
	}
	authority, err := pki.NewAuthority("berth-slurm-jobs")
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := authority.Issue(pki.Identity{CommonName: "berth-slurm-jobs", Addresses: []netip.Addr{address}})
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(pair.Cert, pair.Key)
}

// clientAuthority reads the authority of clients that API servers publish for other servers
// (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/).
func clientAuthority(ctx context.Context, config *rest.Config) ([]byte, error) {
	client, err := core.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	published, err := client.ConfigMaps(metav1.NamespaceSystem).Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		return nil, partitions.Explain("read the authority of the API servers' certificates", err)
	}
	authority := published.Data["client-ca-file"]
	if authority == "" {
		return nil, fmt.Errorf("--logs-address: ConfigMap %s in namespace %s has no client-ca-file, so nobody can tell the API server from others: omit the option, and use 'berth slurm-jobs logs'", published.Name, published.Namespace)
	}
	return []byte(authority), nil
}
