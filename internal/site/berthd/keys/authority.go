package keys

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// authority signs the certificates of a site.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// pair is a certificate and its key, in PEM.
type pair struct{ certificate, key []byte }

const (
	// authorityYears is the validity of a new authority. Replacing it means replacing ca.crt on
	// all hosts.
	authorityYears = 10
	// early makes certificates valid before their creation, for hosts with slow clocks.
	early = time.Hour
)

// newAuthority makes an authority.
func newAuthority(now time.Time) (pair, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "berth site network"}, NotAfter: now.AddDate(authorityYears, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return issue(template, nil, now)
}

// parseAuthority reads an authority. If the file has several certificates, as while one authority
// replaces another, the first one counts.
func parseAuthority(files pair) (*authority, error) {
	both, err := tls.X509KeyPair(files.certificate, files.key)
	if err != nil {
		return nil, err
	}
	signer, isSigner := both.PrivateKey.(crypto.Signer)
	if !isSigner {
		return nil, errors.New("its key cannot sign")
	}
	if !both.Leaf.IsCA {
		return nil, errors.New("its certificate is not an authority's")
	}
	return &authority{certificate: both.Leaf, key: signer}, nil
}

// client issues a certificate that etcd takes for a user's.
func (a *authority) client(user string, now, ends time.Time) (pair, error) {
	return issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: user}, NotAfter: ends,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a, now)
}

// member issues a certificate for a member of etcd, which other members and clients find at hosts.
func (a *authority) member(hosts []string, now, ends time.Time) (pair, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: MemberName}, NotAfter: ends,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if address := net.ParseIP(host); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return issue(template, a, now)
}

// issue makes a key and a certificate for it, signed by an authority or, without one, by itself.
func issue(template *x509.Certificate, by *authority, now time.Time) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return pair{}, err
	}
	template.NotBefore = now.Add(-early)
	if by == nil {
		by = &authority{certificate: template, key: key}
	} else {
		template.KeyUsage = x509.KeyUsageDigitalSignature
		if template.NotAfter.After(by.certificate.NotAfter) {
			return pair{}, fmt.Errorf("the authority ends before, on %s: give fewer --days, or make a new authority", by.certificate.NotAfter.Format(time.DateOnly))
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.certificate, key.Public(), by.key)
	if err != nil {
		return pair{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return pair{}, err
	}
	return pair{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}
