package main

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/pki"
)

func TestServerAddress(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	forwarded := "ipwitness: KUBECONFIG=" + missing + " has no cluster: the file does not exist, or is empty\n"
	t.Setenv("KUBECONFIG", missing)
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

func TestAPortThatIsNotForCommandsIsNamed(t *testing.T) {
	for _, test := range []struct {
		server string
		try    try
		want   string
	}{
		{"http://127.0.0.1:9640", try{err: errors.New("malformed HTTP response")}, "http://127.0.0.1:9640 does not answer commands: port 9640 is that of gRPC, for agents; that for commands is 9641"},
		{"http://10.0.0.1:9642", try{status: 404, body: "404 page not found\n"}, "http://10.0.0.1:9642 does not answer commands: port 9642 is that of an agent; ask the aggregator, on port 9641"},
		{"http://127.0.0.1:9640", try{err: &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}}, "cannot reach http://127.0.0.1:9640: connection refused: start it with 'ipwitness run', or select another server with --server or IPWITNESS_SERVER"},
		{"http://127.0.0.1:9640", try{status: 200, body: "{}"}, "No owners: no agent has reported"}, // someone has moved it there
	} {
		c := newConsole()
		c.transport = &script{tries: []try{test.try}}
		code := 1
		if test.try.status == 200 {
			code = 0
		}
		c.run(t, code, "owners", "--server", test.server)
		if got := strings.TrimSuffix(strings.TrimPrefix(c.stderr.String(), "ipwitness: "), "\n"); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.server, got, test.want)
		}
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

func TestAPluginUsesThePortForwardByDefault(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // not in a pod
	const forwarded, answered = "ipwitness: KUBECONFIG=", "No owners: "
	asked := handler{"/v1/owners": func(*http.Request) (int, string) { return ok(&pb.ListOwnersResponse{})(nil) }}
	for _, test := range []struct{ args, env, want string }{
		{"", "", forwarded},
		{"-P", "", forwarded},
		{"-n shop", "", forwarded},
		{"--aggregator-namespace net", "", forwarded},
		{"--context c", "", `ipwitness: read the kubeconfig: context "c" does not exist`},
		{"--kubeconfig /no/such/file", "", "ipwitness: read the kubeconfig: stat /no/such/file: no such file or directory"},
		{"--server SERVER", "", answered},
		{"--server SERVER -P=false", "", answered},
		{"", "SERVER=SERVER", answered},
		{"-P", "SERVER=SERVER", forwarded},
		{"--server SERVER", "PORT_FORWARD=true", answered},
		{"-P=false", "", "ipwitness: cannot reach http://127.0.0.1:9641: "},
		{"", "PORT_FORWARD=false", "ipwitness: cannot reach http://127.0.0.1:9641: "},
		{"--server SERVER -P", "", "ipwitness: --server and --port-forward cannot be combined"},
		{"--server SERVER --context c", "", "ipwitness: --context selects the aggregator in Kubernetes and needs -P"},
		{"-P=false --kubeconfig f", "", "ipwitness: --kubeconfig selects the aggregator in Kubernetes and needs -P"},
		{"", "KUBECONFIG=off", forwarded}, // it is the flag of an aggregator
	} {
		t.Run(test.env+" "+test.args, func(t *testing.T) {
			c := serve(t, asked)
			server := c.env["IPWITNESS_SERVER"]
			delete(c.env, "IPWITNESS_SERVER")
			c.program, c.plugin = "kubectl ipwitness", true
			c.transport = redirect{to: server}
			if name, value, is := strings.Cut(test.env, "="); is {
				c.env["IPWITNESS_"+name] = strings.ReplaceAll(value, "SERVER", server)
			}
			code := 1
			if test.want == answered {
				code = 0
			}
			c.run(t, code, append([]string{"owners"}, strings.Fields(strings.ReplaceAll(test.args, "SERVER", server))...)...)
			if got := c.stderr.String(); !strings.HasPrefix(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// redirect refuses connections to the default server, which may run on this machine.
type redirect struct{ to string }

func (r redirect) RoundTrip(req *http.Request) (*http.Response, error) {
	if "http://"+req.URL.Host != r.to {
		return nil, syscall.ECONNREFUSED
	}
	return http.DefaultTransport.RoundTrip(req)
}

func TestAPluginNamesItself(t *testing.T) {
	for _, command := range []string{"run", "owners", "conflicts", "explain", "history", "resolve", "judge", "audit", "acknowledge", "backup", "nodes"} {
		c := newConsole()
		c.program, c.plugin = "kubectl ipwitness", true
		c.run(t, 0, command, "--help")
		for line := range strings.Lines(c.stdout.String()) {
			if strings.Contains(line, "'ipwitness ") || strings.HasPrefix(strings.TrimSpace(line), "ipwitness "+command) {
				t.Errorf("%s: got %q, want it to name kubectl ipwitness", command, line)
			}
		}
	}
}
