// Package pki makes the keys and certificates of one cluster, in memory. It writes no
// file. Which identities a cluster has does not belong here.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"time"
)

// lifetime is the validity of every certificate. A cluster lives no longer than its job,
// and few sites let a job run for more than a month. A year is generous, and a key that
// leaks with a core dump does not stay valid for ever.
const lifetime = 365 * 24 * time.Hour

// clockSkew is the largest difference between the clocks of two nodes that leaves a
// fresh certificate valid on both.
const clockSkew = time.Hour

// Pair is a certificate and its key, in PEM. All keys are ECDSA P-256: making an RSA key
// takes 100 ms or more, an ECDSA key 20 µs.
type Pair struct {
	Cert, Key []byte
}

// Authority signs certificates.
type Authority struct {
	Pair
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Identity is the subject of a certificate.
type Identity struct {
	// CommonName is the user name, or the server's name.
	CommonName string
	// Groups lists the user's groups (Organization in the certificate).
	Groups []string
	// Names and Addresses are the subject alternative names of a server.
	Names     []string
	Addresses []netip.Addr
}

// NewAuthority makes a self-signed authority.
func NewAuthority(commonName string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key of authority %s: %w", commonName, err)
	}
	template, err := newTemplate(Identity{CommonName: commonName})
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	pair, cert, err := sign(template, template, key, key)
	if err != nil {
		return nil, fmt.Errorf("sign authority %s: %w", commonName, err)
	}
	return &Authority{Pair: pair, cert: cert, key: key}, nil
}

// LoadAuthority returns the authority with a certificate and a key of NewAuthority.
func LoadAuthority(pair Pair) (*Authority, error) {
	loaded, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, fmt.Errorf("load an authority: %w", err)
	}
	key, ok := loaded.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !loaded.Leaf.IsCA {
		return nil, fmt.Errorf("load the authority %s: it cannot sign certificates", loaded.Leaf.Subject.CommonName)
	}
	return &Authority{Pair: pair, cert: loaded.Leaf, key: key}, nil
}

// Issue makes a key and a certificate for id. A client and a server can use it, because
// several of Kubernetes' identities are both.
func (a *Authority) Issue(id Identity) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make key of %s: %w", id.CommonName, err)
	}
	template, err := newTemplate(id)
	if err != nil {
		return Pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	pair, _, err := sign(template, a.cert, key, a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign certificate of %s: %w", id.CommonName, err)
	}
	return pair, nil
}

// NewKey returns an ECDSA P-256 key in PEM without a certificate, for signing tokens.
func NewKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return encodeKey(key)
}

func newTemplate(id Identity) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: id.CommonName, Organization: id.Groups},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(lifetime),
		DNSNames:     id.Names,
	}
	for _, address := range id.Addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(address.AsSlice()))
	}
	return template, nil
}

func sign(template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) (Pair, *x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return Pair{}, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return Pair{}, nil, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Pair{}, nil, err
	}
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: keyPEM}, cert, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
