package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/pki"
)

func TestServerAddress(t *testing.T) {
	const forwarded = "ipwitness: no kubeconfig found: -P needs KUBECONFIG or ~/.kube/config, like kubectl; " +
		"without Kubernetes, use --server instead of -P\n"
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // not in a pod
	asked := handler{"/v1/owners": func(*http.Request) (int, string) { return ok(&pb.ListOwnersResponse{})(nil) }}
	for _, test := range []struct {
		args, env string
		want      string
	}{
		{args: "-P", want: forwarded},
		{args: "-P --aggregator-namespace net", want: forwarded},
		{args: "-P --context c", want: "ipwitness: read the kubeconfig: context \"c\" does not exist\n"},
		{args: "", env: "PORT_FORWARD=true", want: forwarded},
		{args: "-P --server http://127.0.0.1:1", want: "ipwitness: --server and --port-forward cannot be combined: remove one of them\nRun 'ipwitness owners --help' for usage.\n"},
		{args: "--server SERVER", env: "PORT_FORWARD=true", want: "No owners: "},
		{args: "", env: "AGGREGATOR_NAMESPACE=net", want: "No owners: "},
		{args: "--aggregator-namespace net", want: "ipwitness: --aggregator-namespace selects the aggregator in Kubernetes and needs -P\nRun 'ipwitness owners --help' for usage.\n"},
		{args: "--context c", want: "ipwitness: --context selects the aggregator in Kubernetes and needs -P\nRun 'ipwitness owners --help' for usage.\n"},
		{args: "--aggregator-namespace net", env: "PORT_FORWARD=true", want: forwarded},
	} {
		t.Run(test.env+" "+test.args, func(t *testing.T) {
			c := serve(t, asked)
			args := strings.ReplaceAll(test.args, "SERVER", c.env["IPWITNESS_SERVER"])
			if name, text, is := strings.Cut(test.env, "="); is {
				c.env["IPWITNESS_"+name] = text
			}
			code := 1
			if strings.HasPrefix(test.want, "No owners") {
				code = 0
			}
			c.run(t, code, append([]string{"owners"}, strings.Fields(args)...)...)
			if got := c.stderr.String(); !strings.HasPrefix(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestTLSMismatchIsExplained(t *testing.T) {
	plain, secured := httptest.NewServer(http.NotFoundHandler()), httptest.NewUnstartedServer(http.NotFoundHandler())
	secured.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secured.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secured.Close)
	other, err := pki.New(t.TempDir(), "other")
	if err != nil {
		t.Fatal(err)
	}
	host := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	for _, test := range []struct{ server, want string }{
		{"http://" + host(secured), "uses TLS: use https:// in --server, and set --tls-ca to the CA of its certificate\n"},
		{"https://" + host(plain), "does not use TLS: use http:// in --server\n"},
		{"https://" + host(secured), "signed by unknown authority: set --tls-ca to its CA, and use a server name that is in the certificate\n"},
	} {
		c := newConsole()
		c.run(t, 1, "nodes", "--server", test.server, "--tls-ca", other.File)
		if got := c.stderr.String(); !strings.HasPrefix(got, "ipwitness: ") || !strings.HasSuffix(got, test.want) {
			t.Errorf("%s: got %q, want it to end with %q", test.server, got, test.want)
		}
	}
}

func TestACommandWithoutAServerTakesNoPortForward(t *testing.T) {
	c := newConsole()
	c.run(t, 1, "version", "-P")
	if !strings.Contains(c.stderr.String(), "unknown shorthand flag: 'P'") {
		t.Errorf("got %q, want an error about an unknown flag", &c.stderr)
	}
}
