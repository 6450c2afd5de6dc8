package tests

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/secure"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/pki"
	"github.com/ipwitness/ipwitness/tests/prometheus"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// The scrape jobs, with the names that rules and dashboards use.
const (
	aggregatorJob = "ipwitness-aggregator"
	agentJob      = "ipwitness-agent"
)

// scraping is the interval at which the tests' Prometheus scrapes and evaluates its rules.
const scraping = 200 * time.Millisecond

// watchedBy starts a Prometheus on a host.
func watchedBy(t *testing.T, h *netlab.Host, interval time.Duration, jobs ...prometheus.Job) *prometheus.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := prometheus.Start(ctx, h, prometheus.Config{Jobs: jobs, Interval: interval})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// scraped returns the scrape jobs of a cluster: its aggregator and its agents.
func (c *cluster) scraped() []prometheus.Job {
	agents := prometheus.Job{Name: agentJob}
	for _, n := range c.nodes {
		server := strings.TrimSuffix(n.args[slices.Index(n.args, "--aggregator")+1], ":9640")
		agents.Targets = append(agents.Targets, prometheus.Target{
			Address: fmt.Sprintf("%s:9642", netip.MustParseAddr(server).Next()), Labels: map[string]string{"node": n.name},
		})
	}
	return []prometheus.Job{{Name: aggregatorJob, Targets: []prometheus.Target{{Address: "127.0.0.1:9641"}}}, agents}
}

// alerted waits until Alertmanager has n alerts of a name.
func alerted(t *testing.T, s *prometheus.Server, name string, n int) []prometheus.Alert {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	alerts, err := s.AwaitAlerts(ctx, name, n)
	if err != nil {
		t.Fatal(err)
	}
	return alerts
}

// nowhere returns a kubeconfig for an API server that does not answer.
func nowhere(t *testing.T) string {
	t.Helper()
	file := t.TempDir() + "/kubeconfig"
	if err := os.WriteFile(file, []byte(`{"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestADuplicateBecomesAnAlert runs a real Prometheus that scrapes agents and an aggregator, and a
// real Alertmanager, during an accident. Active conflicts and findings alert; acknowledged and
// resolved conflicts do not. Each panel of the dashboards has data.
func TestADuplicateBecomesAnAlert(t *testing.T) {
	slow(t)
	t.Parallel()
	c := newCluster(t, 2, "--kubeconfig", nowhere(t))
	s := watchedBy(t, c.Host, scraping, c.scraped()...)
	node := c.nodes[0]
	cni := node.cni(netlab.PTP)
	for _, pod := range []string{"old1", "old2", "old3"} {
		if err := cni.Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	for i, pod := range []string{"old1", "old2", "old3"} {
		c.awaitPod(podAddress(i+1), pod)
	}
	c.awaitAllocations(3)
	if err := cni.Forget(); err != nil {
		t.Fatal(err)
	}
	lost := alerted(t, s, "IpwitnessIPAMStateLost", 1)[0]
	if want := "Pool /run/cni-ipam-state/kindnet of node1 has no records left."; !strings.Contains(lost.Annotations["description"], want) {
		t.Errorf("alert on lost records: got %q, want %q in it", lost.Annotations["description"], want)
	}

	begin := time.Now()
	if err := cni.Add("new1"); err != nil {
		t.Fatal(err)
	}
	// new1 is known to be a pod only when its plugin has ended. On a busy machine that is after the
	// conflict is confirmed, and changes the alert's labels.
	var conflict prometheus.Alert
	wait.Until(t, "the alert to have the cause", func() bool {
		conflict = alerted(t, s, "IpwitnessAddressConflict", 1)[0]
		return conflict.Labels["cause"] != "unknown"
	})
	took := time.Since(begin)
	id := c.only(podAddress(1)).GetId()
	for name, want := range map[string]string{
		"address": podAddress(1), "cause": "ipam-state-lost", "id": id, "severity": "critical", "state": "confirmed", "job": aggregatorJob,
	} {
		if got := conflict.Labels[name]; got != want {
			t.Errorf("label %s of the alert: got %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{
		"runbook_url": "https://github.com/ipwitness/ipwitness/blob/main/docs/runbooks/ipam-state-lost.md",
		"summary":     "More than one host claims " + podAddress(1) + " (ipam-state-lost)",
		"description": podAddress(1) + " is claimed by pod default/old1 (node1) | pod default/new1 (node1) in ",
	} {
		if got := conflict.Annotations[name]; !strings.HasPrefix(got, want) {
			t.Errorf("%s of the alert: got %q, want %q", name, got, want)
		}
	}
	t.Logf("from the request for the pod to the alert in Alertmanager: %v, with scrapes and evaluations every %v and a settle time of 1s", took, scraping)

	wantPanels(t, s)

	// An acknowledged conflict no longer alerts. A second conflict shows that alerts are still
	// delivered.
	c.acknowledge(id)
	alerted(t, s, "IpwitnessAddressConflict", 0)
	if err := cni.Add("new2"); err != nil {
		t.Fatal(err)
	}
	if got := alerted(t, s, "IpwitnessAddressConflict", 1)[0].Labels["address"]; got != podAddress(2) {
		t.Errorf("address of the other alert: got %s, want %s", got, podAddress(2))
	}
	begin = time.Now()
	if err := cni.Delete("old2"); err != nil {
		t.Fatal(err)
	}
	alerted(t, s, "IpwitnessAddressConflict", 0)
	t.Logf("from the end of the duplicate to that of the alert: %v", time.Since(begin))
	c.wantConfirmed(podAddress(1), podAddress(2))

	checkMetrics(t, c.program, node.agent)
}

// wantPanels fails if a query of the dashboards has no data.
func wantPanels(t *testing.T, s *prometheus.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// The API server does not answer, and meanwhile nothing says that there are no suspected conflicts.
	missing, err := s.WithoutData(ctx, "30s", "Suspected conflicts")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range missing {
		t.Error("no data: ", m)
	}
}

// acknowledge acknowledges a conflict.
func (c *cluster) acknowledge(id string) {
	c.t.Helper()
	if out, err := c.Output(c.Command(binary, "acknowledge", id, "--reason", "a test", "--for", "1h")); err != nil {
		c.t.Fatal(err, out)
	}
}

// TestRunIsScraped tests the same with agent and aggregator in one process, and allows no other
// alert.
func TestRunIsScraped(t *testing.T) {
	slow(t)
	t.Parallel()
	l := newLab(t)
	s := watchedBy(t, l.Host, scraping, prometheus.Job{Name: aggregatorJob, Targets: []prometheus.Target{{Address: "127.0.0.1:9641"}}})
	l.seed("plant", planted)
	got := alerted(t, s, "IpwitnessAddressConflict", 1)[0]
	if got.Labels["address"] != planted || !strings.HasSuffix(got.Annotations["runbook_url"], "/"+got.Labels["cause"]+".md") {
		t.Errorf("alert: got %v %v, want one of %s with the page of its cause", got.Labels, got.Annotations, planted)
	}
	l.watch.await("it to be confirmed", inState(planted, ipwitnessv1.Conflict_CONFIRMED))
	// All rules are evaluated several times while the next conflict settles, and no other rule
	// even becomes pending.
	l.plantUnconfirmed()
	alerted(t, s, "IpwitnessAddressConflict", 2)
	// On a busy machine a scrape or a verdict may take too long. A scrape error ends with the next
	// scrape, and a late verdict is what IpwitnessDetectionSlow reports.
	var others []prometheus.Series
	defer func() {
		if t.Failed() {
			t.Log("other alerts: ", others)
		}
	}()
	wait.Until(t, "no other alert on a host that is well but for duplicates", func() bool {
		var err error
		others, err = s.Query(t.Context(), `ALERTS{alertname!~"Ipwitness(AddressConflict(Suspected)?|DetectionSlow)"}`)
		return err == nil && len(others) == 0
	})
	checkMetrics(t, l.program)
}

// checkMetrics checks the programs' metrics with promtool, and that docs/metrics.md lists them with
// name, type, labels and label values.
func checkMetrics(t *testing.T, programs ...*netlab.Program) {
	t.Helper()
	raw, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	series := regexp.MustCompile(`(?m)^(ipwitness_\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? \S+$`)
	label := regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
	for _, p := range programs {
		text, err := p.Text(t.Context(), "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		check := exec.Command("promtool", "check", "metrics")
		check.Stdin = strings.NewReader(text)
		if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("promtool check metrics: %v\n%s", err, out)
		}
		types := map[string]string{}
		for _, m := range regexp.MustCompile(`(?m)^# TYPE (\w+) (\w+)$`).FindAllStringSubmatch(text, -1) {
			types[m[1]] = m[2]
		}
		said := map[string]bool{}
		for _, m := range series.FindAllStringSubmatch(text, -1) {
			name, labels := m[1], map[string]string{}
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				labels[l[1]] = l[2]
			}
			delete(labels, "le")
			row := regexp.MustCompile("(?m)^\\| `" + name + "` \\| " + types[name] + " \\| (.*?) \\|").FindStringSubmatch(page)
			if row == nil {
				said[fmt.Sprintf("docs/metrics.md has no %s of type %s", name, types[name])] = true
				continue
			}
			if got, want := slices.Sorted(maps.Keys(labels)), strings.Split(row[1], ", "); len(labels) > 0 && !slices.Equal(got, slices.Sorted(slices.Values(want))) {
				said[fmt.Sprintf("labels of %s: got %v, want those of docs/metrics.md: %v", name, got, want)] = true
			}
			for l, value := range labels {
				values := regexp.MustCompile("(?m)^\\| " + l + " \\| .*`" + name + "`.* \\| (`.*`) \\|$").FindStringSubmatch(page)
				if values != nil && !strings.Contains(values[1], "`"+value+"`") {
					said[fmt.Sprintf("label %s of %s: got %q, want one of docs/metrics.md: %s", l, name, value, values[1])] = true
				}
			}
		}
		for _, what := range slices.Sorted(maps.Keys(said)) {
			t.Error(what)
		}
	}
}

var pictures = flag.String("pictures", "", "draw the dashboards into this directory, which takes some minutes")

// TestDashboardsAreDrawn renders the pictures of docs/observability.md with chromium, from a
// cluster on which the accident happens. Only make update-pictures runs it.
func TestDashboardsAreDrawn(t *testing.T) {
	if *pictures == "" {
		t.Skip("no -pictures: make update-pictures")
	}
	c := newCluster(t, 3, "--kubeconfig", nowhere(t), "--leaked-after", "20s")
	s := watchedBy(t, c.Host, time.Second, c.scraped()...)
	pods := map[*lab]*netlab.CNI{}
	start := func(n *lab, names ...string) {
		for _, name := range names {
			if err := pods[n].Add(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, n := range c.nodes {
		pods[n] = n.cni(strings.ReplaceAll(netlab.PTP, "10.244.0.0/16", fmt.Sprintf("10.244.%d.0/27", i)))
	}
	begin := time.Now()
	const lasts = 4 * time.Minute
	tick := time.NewTicker(lasts / 60)
	defer tick.Stop()
	for i := range 60 {
		switch n := c.nodes[i%3]; {
		case i < 36:
			start(n, fmt.Sprintf("web-%d", i))
		case i == 36:
			if err := pods[c.nodes[0]].Forget(); err != nil {
				t.Fatal(err)
			}
		case i == 42:
			start(c.nodes[0], "api-1", "api-2", "api-3")
		case i == 44:
			// Leaks: namespaces end without a CNI DEL.
			c.nodes[1].sh("ip netns del web-1", "ip netns del web-4", "ip netns del web-7")
		case i > 44 && i%3 == 2:
			start(n, fmt.Sprintf("job-%d", i))
		case i == 49:
			c.acknowledge(c.only(podAddress(3)).GetId())
		}
		<-tick.C
	}
	all, err := prometheus.ReadDashboards()
	if err != nil {
		t.Fatal(err)
	}
	for file, d := range all {
		page, height, err := s.Render(t.Context(), d, "15s", time.Since(begin))
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/page.html", []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(file, ".json")
		shot := exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
			"--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--disable-lcd-text", "--user-data-dir="+dir+"/profile",
			fmt.Sprintf("--window-size=1400,%d", height), "--screenshot="+*pictures+"/dashboard-"+name+".png", "file://"+dir+"/page.html")
		if out, err := shot.CombinedOutput(); err != nil {
			t.Fatalf("chromium: %v\n%s", err, out)
		}
		if err := prometheus.Shrink(*pictures + "/dashboard-" + name + ".png"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPrometheusIsKnownByTokenAndCertificate configures a Prometheus as in docs/observability.md.
// It scrapes an aggregator that requires a token and an agent that requires a certificate. A
// Prometheus without them is refused.
func TestPrometheusIsKnownByTokenAndCertificate(t *testing.T) {
	slow(t)
	t.Parallel()
	c := newSecured(t)
	n := c.addMachine(newHost(t), "node1", 1)
	n.boot(n.number)
	issue := func(w pki.Want) pki.Pair {
		p, err := c.clients.Issue(w)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	agents := "198.18.0.1"
	at := n.managed(c.cluster)
	own := issue(pki.Want{File: "node1", CommonName: "node1", Organization: "ipwitness:agents", Hosts: []string{agents, "127.0.0.1"}})
	scraper := issue(pki.Want{File: "prometheus", CommonName: "prometheus", Organization: "ipwitness:readers"})
	n.Secure = &netlab.Secure{TLS: clientTLS(t, c.clients.File, scraper)}
	n.witness("--aggregator", at+":9640", "--tls-ca", c.servers.File, "--tls-cert", own.Cert, "--tls-key", own.Key, "--tls-client-ca", c.clients.File)
	token := filepath.Join(c.dir, "token")
	if err := os.WriteFile(token, []byte(aliceToken), 0o600); err != nil {
		t.Fatal(err)
	}
	aggregators, nodes := []prometheus.Target{{Address: "127.0.0.1:9641"}}, []prometheus.Target{{Address: agents + ":9642", Labels: map[string]string{"node": "node1"}}}
	s := watchedBy(t, c.Host, scraping,
		prometheus.Job{
			Name: aggregatorJob, Targets: aggregators,
			More: fmt.Sprintf("scheme: https\ntls_config: {ca_file: %s}\nauthorization: {credentials_file: %s}\n", c.servers.File, token),
		},
		prometheus.Job{
			Name: agentJob, Targets: nodes,
			More: fmt.Sprintf("scheme: https\ntls_config: {ca_file: %s, cert_file: %s, key_file: %s}\n", c.clients.File, scraper.Cert, scraper.Key),
		},
		prometheus.Job{
			Name: "nobody", Targets: slices.Concat(aggregators, nodes),
			More: "scheme: https\ntls_config: {insecure_skip_verify: true}\n",
		})
	wait.Until(t, "both to be scraped, by who may", func() bool {
		up, err := s.Query(t.Context(), `sort(count by (job) (up{job="nobody"} == 0 or up{job!="nobody"} == 1))`)
		return err == nil && len(up) == 3 && up[2].Points[0].Value == 2
	})
	wait.Until(t, "both certificates, and the refusals", func() bool {
		ends, err := s.Query(t.Context(), `ipwitness_tls_certificate_not_after_timestamp_seconds - time() > 3600`)
		refused, err2 := s.Query(t.Context(), `ipwitness_requests_refused_total{reason="unauthenticated"} > 0`)
		return err == nil && err2 == nil && len(ends) == 2 && len(refused) == 1
	})
}

// clientTLS returns the TLS configuration of a client with a certificate.
func clientTLS(t *testing.T, ca string, own pki.Pair) *tls.Config {
	t.Helper()
	c, err := secure.Files{CA: ca, Cert: own.Cert, Key: own.Key}.Client()
	if err != nil {
		t.Fatal(err)
	}
	return c
}
