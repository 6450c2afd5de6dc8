// Package pki creates certificate authorities and certificates for tests.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// CA is a certificate authority that writes its certificates to a directory.
type CA struct {
	// File contains the certificate of the CA.
	File string
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	last int64
}

// Pair contains the files of a certificate and its key.
type Pair struct{ Cert, Key string }

// New creates a certificate authority with a name, and its files in dir.
func New(dir, name string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &CA{File: filepath.Join(dir, name+"-ca.crt"), dir: dir, key: key, last: 1}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return ca, writePEM(ca.File, "CERTIFICATE", der)
}

// Want describes a certificate.
type Want struct {
	// File is the name of its files. CommonName and Organization are parts of its subject.
	File, CommonName, Organization string
	// Hosts are the addresses and names for which it is valid.
	Hosts []string
	// Ended makes it an expired certificate.
	Ended bool
}

// Issue signs a certificate, and replaces existing files with its name.
func (ca *CA) Issue(want Want) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	ca.last++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(ca.last), Subject: pkix.Name{CommonName: want.CommonName},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(12 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if want.Organization != "" {
		template.Subject.Organization = []string{want.Organization}
	}
	if want.Ended {
		template.NotAfter = time.Now().Add(-time.Hour)
	}
	for _, host := range want.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return Pair{}, err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	p := Pair{filepath.Join(ca.dir, want.File+".crt"), filepath.Join(ca.dir, want.File+".key")}
	if err := writePEM(p.Key, "PRIVATE KEY", raw); err != nil {
		return p, err
	}
	return p, writePEM(p.Cert, "CERTIFICATE", der)
}

// writePEM replaces a file atomically, as programs that rotate certificates do.
func writePEM(name, kind string, der []byte) error {
	temporary := name + ".new"
	if err := os.WriteFile(temporary, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.Rename(temporary, name)
}
