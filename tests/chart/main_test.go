package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// All paths are relative to the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// needHelm skips the test if there is no Helm. Under make test it fails it.
func needHelm(t *testing.T) {
	t.Helper()
	if _, err := helmProgram(); err != nil {
		if os.Getenv("IPWITNESS_ROOT_TESTS") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// operators are the flags that make Helm assume a cluster with the operators.
var operators = []string{
	"--api-versions", "cert-manager.io/v1/Certificate", "--api-versions", "monitoring.coreos.com/v1/ServiceMonitor",
	"--api-versions", "monitoring.coreos.com/v1/PodMonitor", "--api-versions", "monitoring.coreos.com/v1/PrometheusRule",
}

// object is an object that the chart generates.
type object struct {
	metav1.TypeMeta
	metav1.ObjectMeta `json:"metadata"`
	text              []byte // JSON
}

// into decodes an object into its type.
func (o object) into(t *testing.T, to any) {
	t.Helper()
	if err := json.Unmarshal(o.text, to); err != nil {
		t.Fatal(err)
	}
}

// template returns the objects of a release with the given values.
func template(t *testing.T, release string, set ...string) (all []object) {
	t.Helper()
	needHelm(t)
	args := append([]string{"template", release, chart, "--namespace", "net"}, operators...)
	for _, s := range set {
		args = append(args, "--set", s)
	}
	out, err := helm(args...)
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewDecoder(strings.NewReader(out)); ; {
		var any map[string]any
		if err := d.Decode(&any); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if any == nil {
			continue
		}
		o := object{}
		if o.text, err = json.Marshal(any); err != nil {
			t.Fatal(err)
		}
		o.into(t, &o)
		all = append(all, o)
	}
}

// the decodes the only object of a kind and name.
func the(t *testing.T, all []object, kind, name string, to any) {
	t.Helper()
	for _, o := range all {
		if o.Kind == kind && o.Name == name {
			o.into(t, to)
			return
		}
	}
	t.Fatalf("no %s %s", kind, name)
}

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	needHelm(t)
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := valueList(values)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{filepath.Join(chart, "README.md"): listBegins + list + listEnds}
	for _, m := range rendered {
		if want[filepath.Join(manifests, m.path)], err = m.render(); err != nil {
			t.Fatal(err)
		}
	}
	definition, err := os.ReadFile(filepath.Join(chart, "crds", definitions))
	if err != nil {
		t.Fatal(err)
	}
	want[filepath.Join(manifests, "base", definitions)] = string(definition)
	for path, text := range want {
		if got, err := os.ReadFile(path); err != nil || !strings.Contains(string(got), text) {
			t.Errorf("%s is not up to date (%v): run 'make generate'", path, err)
		}
	}
}

func TestChartIsLinted(t *testing.T) {
	needHelm(t)
	for _, set := range []string{
		"witness.cluster=a",
		// Combinations for which NOTES.txt has a text.
		"tls.mode=existing,tls.existing.caConfigMap=a,aggregator.ingress.enabled=true,aggregator.ingress.hosts={a.example.net},aggregator.service.type=NodePort",
		"tls.mode=off,auth.tokenReview=false,aggregator.persistence.enabled=false",
	} {
		if _, err := helm("lint", "--strict", chart, "--set", set); err != nil {
			t.Errorf("--set %s: %v", set, err)
		}
	}
}

// Another chart may depend on this one. The values that Helm adds then, the condition and the
// globals, must be accepted.
func TestDependencyOfAnotherChart(t *testing.T) {
	needHelm(t)
	dir := t.TempDir()
	parent := `{apiVersion: v2, name: platform, version: 0.1.0, dependencies: [{name: ipwitness, version: "*", condition: ipwitness.enabled}]}`
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "Chart.yaml"), []byte(parent), 0o600),
		os.CopyFS(filepath.Join(dir, "charts/ipwitness"), os.DirFS(chart))); err != nil {
		t.Fatal(err)
	}
	for enabled, want := range map[string]bool{"true": true, "false": false} {
		out, err := helm("template", "release", dir, "--set", "ipwitness.enabled="+enabled+",ipwitness.agent.wire=off,global.registry=example.net")
		if got := strings.Contains(out, "name: release-ipwitness-agent"); err != nil || got != want {
			t.Errorf("ipwitness.enabled=%s: agents are installed: got %t (%v), want %t", enabled, got, err, want)
		}
	}
}

// flagValues has, for each flag that values of the chart set, the value, and values that the program accepts
// and refuses. The JSON of a value is that of helm's --set-json.
var flagValues = map[string]struct {
	command, value string
	// entry returns what the chart writes for a value; nil for the value itself.
	entry            func(value string) any
	accepts, refuses []string
}{
	"cluster": {"aggregator", "witness.cluster", nil, []string{"prod", "eu.west_1"}, []string{"", " ", "a/b", "a b", strings.Repeat("a", 254)}},
	"network": {
		"aggregator", "witness.networks", network,
		[]string{`{"pods":["10.244.0.0/16","fd00:244::/48"]}`, `{"all":["0.0.0.0/0","::/0"]}`, `{"one":["10.0.0.1/32","fd00::1/128","::1/128"]}`, `{"odd":["10.0.128.0/17","fd00:0:0:8000::/49","1:2:3:4:5:6:7:8/128"]}`},
		[]string{`{"x":["10.0.0.0/99"]}`, `{"x":["10.0.0.1/8"]}`, `{"x":["10.0.0.0/8","10.0.128.0/16"]}`, `{"x":["fd00:9::1/64"]}`, `{"x":["fd00:0:0:8000::/48"]}`, `{"x":["fd00::/129"]}`, `{"x":["1::2::3/64"]}`, `{"x":["10.0.0/8"]}`, `{"x":["256.0.0.0/8"]}`, `{"x":["banana/8"]}`, `{"a b":["10.0.0.0/8"]}`, `{"a/b":["10.0.0.0/8"]}`, `{"x":[]}`},
	},
	"shared":         {"aggregator", "witness.shared", reasons, []string{`{"10.9.0.0/24":"any cast"}`, `{"fd00:9::/64":"=1"}`}, []string{`{"10.9.0.1/24":"anycast"}`, `{"10.9.0.0/33":"anycast"}`, `{"10.9.0.0/24":" "}`, `{"10.9.0.0/24":""}`, `{"a":"anycast"}`}},
	"router":         {"aggregator", "witness.routers", reasons, []string{`{"kube-system/vpn-*":"gateway"}`, `{"02:00:00:00:00:01":"gateway"}`, `{"a/[b-d]?":"gateway"}`}, []string{`{" ":"gateway"}`, `{"a/[":"gateway"}`, `{"a/[]":"gateway"}`, `{"a/b":" "}`, `{"a/b":""}`}},
	"settle":         {"aggregator", "witness.settle", nil, durations, notDurations},
	"stale-after":    {"aggregator", "witness.staleAfter", nil, durations, notDurations},
	"node-timeout":   {"aggregator", "witness.nodeTimeout", nil, durations, notDurations},
	"handover-grace": {"aggregator", "witness.handoverGrace", nil, durations, notDurations},
	"leaked-after":   {"aggregator", "witness.leakedAfter", nil, durations, notDurations},
	"reused-within":  {"aggregator", "witness.reusedWithin", nil, append([]string{"off"}, durations...), notDurations},
	"retention":      {"aggregator", "aggregator.retention", nil, durations, notDurations},
	"journal-size":   {"aggregator", "aggregator.journalSize", nil, []string{"16MiB", "16384KiB", "10GiB", "524287GiB"}, []string{"15MiB", "16383KiB", "0GiB", "524288GiB", "10GB", "10"}},
	"otlp-endpoint":  {"aggregator", "aggregator.export.otlpEndpoint", nil, urls, notURLs},
	"alertmanager":   {"aggregator", "aggregator.export.alertmanagers", list, quoted(urls), quoted(notURLs)},
	"webhook":        {"aggregator", "aggregator.export.webhookUrl", nil, urls, notURLs},
	"nats":           {"aggregator", "aggregator.export.natsServers", list, quoted([]string{"nats://n:4222", "tls://[fd00::1]:4222", "wss://n.example.net"}), quoted([]string{"nats://", "nats://u:p@n:4222", "http://n:4222", "nats://n:x", "n:4222"})},
	"anonymous":      {"aggregator", "auth.anonymous", nil, []string{"none", "read"}, []string{"write"}},
	"log-level":      {"aggregator", "log.level", nil, []string{"debug", "error"}, []string{"loud"}},
	"log-format":     {"aggregator", "log.format", nil, []string{"json", "text"}, []string{"xml"}},

	"aggregator":         {"agent", "agent.aggregators", list, quoted([]string{"a.example.net:9640", "192.0.2.1:1", "[2001:db8::1]:65535"}), quoted([]string{"a", ":9640", "a:0", "a:65536", "a:x", "http://a:9640", "2001:db8::1:9640"})},
	"wire":               {"agent", "agent.wire", nil, []string{"auto", "off"}, []string{"xdp"}},
	"cri-socket":         {"agent", "agent.criSocket", nil, []string{"auto", "off", "/run/cri.sock"}, nil},
	"interfaces":         {"agent", "agent.interfaces", list, quoted(globs), quoted(notGlobs)},
	"exclude-interfaces": {"agent", "agent.excludeInterfaces", list, quoted(globs), quoted(notGlobs)},
	"http-listen":        {"agent", "agent.httpListen", nil, []string{":9642", "127.0.0.1:9642", "[::1]:1", "localhost:65535"}, []string{":99999", ":65536", "9642", "a:b:9642", ":", ":http"}},
}

var (
	durations    = []string{"1s", "500ms", "1h30m", "1.5s", "0h1m", "999999h", "30d", "1d12h"}
	notDurations = []string{"0s", "0.0s", "0h0m", "-1s", "1", "soon", "9999999h", "0d", "99999d", "d", "1w", ""}
	urls         = []string{"http://a:4318", "https://a.example.net/b?c=d#e", "http://[fd00::1]:80/", "https://u:p@a/%20"}
	notURLs      = []string{"a:4318", "http://", "http:///a", "ftp://a", "http://a:b", "http://a b", "http://a/%zz", "http://[::1"}
	globs        = []string{"eth*", "bond?", "e[a-c]0", "e[^0-9]"}
	notGlobs     = []string{"e[", "e[]", "e[a", "e[a-]", `e\\`}
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Artifact Hub reads lists as YAML from annotations, and drops those that it cannot parse.
func TestAnnotationsOfTheChartAreTrue(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var about struct {
		Icon        string
		Maintainers []struct{ Name, URL string }
		Annotations map[string]string
	}
	if err := yaml.Unmarshal(text, &about); err != nil {
		t.Fatal(err)
	}
	if len(about.Maintainers) == 0 || about.Maintainers[0].Name == "" {
		t.Errorf("got maintainers %v, want one", about.Maintainers)
	}
	const raw, page = "https://raw.githubusercontent.com/ipwitness/ipwitness/main/", "https://github.com/ipwitness/ipwitness/blob/main/"
	var links []struct{ Name, URL string }
	if err := yaml.Unmarshal([]byte(about.Annotations["artifacthub.io/links"]), &links); err != nil || len(links) == 0 {
		t.Fatalf("got %v, %v, want links", links, err)
	}
	files := []string{strings.TrimPrefix(about.Icon, raw)}
	for _, l := range links {
		files = append(files, strings.TrimPrefix(l.URL, page))
	}
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			t.Errorf("Chart.yaml links to a file that does not exist: %v", err)
		}
	}
	var crds []struct{ Kind, Version, Name string }
	if err := yaml.Unmarshal([]byte(about.Annotations["artifacthub.io/crds"]), &crds); err != nil || len(crds) != 1 {
		t.Fatalf("got %v, %v, want one custom resource", crds, err)
	}
	var crd struct {
		Metadata struct{ Name string }
		Spec     struct {
			Names    struct{ Kind string }
			Versions []struct{ Name string }
		}
	}
	if text, err = os.ReadFile(filepath.Join(chart, "crds", definitions)); err == nil {
		err = yaml.Unmarshal(text, &crd)
	}
	if err != nil || crds[0].Name != crd.Metadata.Name || crds[0].Kind != crd.Spec.Names.Kind || crds[0].Version != crd.Spec.Versions[0].Name {
		t.Errorf("got %v (%v), want %s %s %s", crds, err, crd.Metadata.Name, crd.Spec.Names.Kind, crd.Spec.Versions[0].Name)
	}
}
