package etcd

import (
	"net"
	"strings"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.uber.org/zap"

	"berth.dev/berth/internal/site/siteconf"
)

// Any user of the host may have opened a port of etcd first.
func TestOccupiedEtcdAddressIsNamed(t *testing.T) {
	const host = "127.0.0.93"
	keys, err := transport.SelfCert(zap.NewNop(), t.TempDir(), []string{host}, 1)
	if err != nil {
		t.Fatal(err)
	}
	first, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	taken := first.Addr().String()
	member := Member{Name: "a", Dir: t.TempDir(), Host: host, Cluster: "a=https://" + host + ":2380", HTTP: taken, Cert: keys.CertFile, Key: keys.KeyFile}
	err = Run(t.Context(), siteconf.Etcd{CA: keys.CertFile}, member)
	if err == nil || !strings.Contains(err.Error(), taken) || !strings.Contains(err.Error(), "give another address with --http") {
		t.Errorf("%s is taken, and it says: %v", taken, err)
	}
}
