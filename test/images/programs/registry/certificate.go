package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"time"
)

// serverCertificate makes an authority, writes its certificate to a file, and
// returns a certificate for this host's name and addresses.
func serverCertificate(path string) (tls.Certificate, error) {
	authority := template("Private CA of the test registry")
	authority.IsCA, authority.BasicConstraintsValid = true, true
	authority.KeyUsage = x509.KeyUsageCertSign
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	encoded, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: encoded})
	if err := os.WriteFile(path, block, 0o644); err != nil {
		return tls.Certificate{}, err
	}

	server := template("test registry")
	host, err := os.Hostname()
	if err != nil {
		return tls.Certificate{}, err
	}
	server.DNSNames = []string{host, "localhost"}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return tls.Certificate{}, err
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok {
			server.IPAddresses = append(server.IPAddresses, network.IP)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	encoded, err = x509.CreateCertificate(rand.Reader, server, authority, key.Public(), authorityKey)
	return tls.Certificate{Certificate: [][]byte{encoded}, PrivateKey: key}, err
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}
