package main

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// The certificates of all sources have the same names, for agents, users and each pod.
func TestNamesInCertificates(t *testing.T) {
	want := []string{"ipwitness.net.svc", "ipwitness-replicas.net.svc", "ipwitness-aggregator-0.ipwitness-replicas.net.svc", "ipwitness-aggregator-11.ipwitness-replicas.net.svc.cluster.local", "localhost"}
	verify := func(source string, names []string) {
		t.Helper()
		c := x509.Certificate{DNSNames: names}
		for _, name := range want {
			if err := c.VerifyHostname(name); err != nil {
				t.Errorf("%s: %v", source, err)
			}
		}
		if c.VerifyHostname("ipwitness-replicas.other.svc") == nil {
			t.Errorf("%s: it is good for any name", source)
		}
	}
	var secret corev1.Secret
	the(t, template(t, "ipwitness"), "Secret", "ipwitness-tls", &secret)
	block, _ := pem.Decode(secret.Data["tls.crt"])
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	verify("helm", cert.DNSNames)
	var ofCertManager struct{ Spec struct{ DNSNames []string } }
	the(t, template(t, "ipwitness", "tls.mode=cert-manager"), "Certificate", "ipwitness", &ofCertManager)
	verify("cert-manager", ofCertManager.Spec.DNSNames)
	script, err := os.ReadFile(filepath.Join(manifests, "certificates.sh"))
	if err != nil {
		t.Fatal(err)
	}
	var ofScript []string
	for _, m := range regexp.MustCompile(`DNS:([^,"]+)`).FindAllStringSubmatch(string(script), -1) {
		ofScript = append(ofScript, strings.NewReplacer("$namespace", "net", "$name", "ipwitness").Replace(m[1]))
	}
	verify("certificates.sh", ofScript)
	slices.Sort(ofScript)
	if slices.Sort(cert.DNSNames); !slices.Equal(slices.DeleteFunc(ofScript, func(n string) bool { return n == "$n" }), cert.DNSNames) {
		t.Errorf("certificates.sh has %q, and the chart %q", ofScript, cert.DNSNames)
	}
}

// long is a release name of the greatest length.
const long = "a-release-with-a-name-that-is-as-long-as-can-be-53-ch"

// Two releases in a cluster share no object, and every object can be found by its labels.
func TestNamesAndLabels(t *testing.T) {
	seen := map[string]string{}
	for _, release := range []string{"ipwitness", "other", long} {
		all := template(t, release, "tls.mode=cert-manager,aggregator.persistence.enabled=true,monitoring.dashboards.enabled=true,"+
			"monitoring.rules.enabled=true,monitoring.serviceMonitor.enabled=true,monitoring.podMonitor.enabled=true,rbac.aggregate=true")
		for _, o := range all {
			id := o.Kind + " " + o.Name
			if by := seen[id]; by != "" && by != release {
				t.Errorf("releases %s and %s share %s", by, release, id)
			}
			seen[id] = release
			longest := 63
			if o.Kind == "StatefulSet" {
				longest = 52 // its pods have the name and a hash in a label
			}
			if len(o.Name) > longest {
				t.Errorf("%s %s has %d characters, but the limit is %d", o.Kind, o.Name, len(o.Name), longest)
			}
			if o.Labels["app.kubernetes.io/name"] != "ipwitness" || o.Labels["app.kubernetes.io/instance"] != release || o.Labels["helm.sh/chart"] == "" {
				t.Errorf("%s has labels %v", id, o.Labels)
			}
			if cluster := strings.HasPrefix(o.Kind, "Cluster"); cluster != (o.Namespace == "") {
				t.Errorf("%s is in namespace %q", id, o.Namespace)
			}
		}
	}
	all := template(t, "ipwitness")
	var agent appsv1.DaemonSet
	var aggregator appsv1.StatefulSet
	var service corev1.Service
	the(t, all, "DaemonSet", "ipwitness-agent", &agent)
	the(t, all, "StatefulSet", "ipwitness-aggregator", &aggregator)
	the(t, all, "Service", "ipwitness", &service)
	selects := func(what string, selector, labels map[string]string, want bool) {
		got := true
		for k, v := range selector {
			got = got && labels[k] == v
		}
		if got != want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	pod := aggregator.Spec.Template.Labels
	selects("the Service selects the aggregator", service.Spec.Selector, pod, true)
	selects("the Service selects agents", service.Spec.Selector, agent.Spec.Template.Labels, false)
	selects("the StatefulSet selects its pods", aggregator.Spec.Selector.MatchLabels, pod, true)
	selects("the DaemonSet selects its pods", agent.Spec.Selector.MatchLabels, agent.Spec.Template.Labels, true)
	for _, l := range []map[string]string{pod, agent.Spec.Template.Labels} {
		if l["helm.sh/chart"] != "" || l["app.kubernetes.io/version"] != "" {
			t.Errorf("pods have labels %v: they are replaced when the chart alone changes", l)
		}
	}
}

// Names that look like numbers in YAML remain strings, because the API server would refuse numbers.
func TestNamesLikeNumbers(t *testing.T) {
	for _, release := range []string{"1234567", "1e3"} {
		for _, set := range []string{"fullnameOverride=e1", "fullnameOverride=e3,tls.mode=cert-manager,monitoring.rules.enabled=true"} {
			for _, o := range template(t, release, set) {
				if o.Labels["app.kubernetes.io/instance"] != release {
					t.Errorf("%s %s of release %s has labels %v", o.Kind, o.Name, release, o.Labels)
				}
			}
		}
	}
	out, err := helm("template", "ipwitness", chart, "--namespace", "1234567")
	if err != nil || strings.Contains(out, "namespace: 1234567") {
		t.Errorf("a namespace is a number (%v)", err)
	}
}

// The labels of a pod have precedence over the common labels.
func TestLabelsOfPods(t *testing.T) {
	for component, kind := range map[string]string{"agent": "DaemonSet", "aggregator": "StatefulSet"} {
		all := template(t, "ipwitness", "commonLabels.team=net,commonLabels.cost=1a,"+component+".podLabels.team=own")
		var o struct {
			Spec struct{ Template corev1.PodTemplateSpec }
		}
		the(t, all, kind, "ipwitness-"+component, &o)
		if l := o.Spec.Template.Labels; l["team"] != "own" || l["cost"] != "1a" {
			t.Errorf("%s: got labels %v", component, l)
		}
	}
}

// The commonName of a certificate has at most 64 characters (RFC 5280, ub-common-name).
// cert-manager refuses longer ones.
func TestCommonNames(t *testing.T) {
	for _, o := range template(t, long, "tls.mode=cert-manager") {
		if o.Kind != "Certificate" {
			continue
		}
		var c struct{ Spec struct{ CommonName string } }
		o.into(t, &c)
		if n := len(c.Spec.CommonName); n == 0 || n > 64 {
			t.Errorf("%s: commonName %q has %d characters", o.Name, c.Spec.CommonName, n)
		}
	}
}
