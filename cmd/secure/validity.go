package secure

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	notBeforeDesc = prometheus.NewDesc("ipwitness_tls_certificate_not_before_timestamp_seconds",
		"Start of the validity of the certificate in --tls-cert; absent without a certificate.", nil, nil)
	notAfterDesc = prometheus.NewDesc("ipwitness_tls_certificate_not_after_timestamp_seconds",
		"End of the validity of the certificate in --tls-cert; absent without a certificate.", nil, nil)
)

// Describe implements prometheus.Collector. The metrics are the validity of our certificate.
func (f Files) Describe(out chan<- *prometheus.Desc) {
	out <- notBeforeDesc
	out <- notAfterDesc
}

// Collect implements prometheus.Collector.
func (f Files) Collect(out chan<- prometheus.Metric) {
	raw, err := os.ReadFile(f.Cert)
	block, _ := pem.Decode(raw)
	if err != nil || block == nil {
		return // no certificate, or the log has the error
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return
	}
	at := func(d *prometheus.Desc, t time.Time) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(t.Unix()))
	}
	at(notBeforeDesc, cert.NotBefore)
	at(notAfterDesc, cert.NotAfter)
}
