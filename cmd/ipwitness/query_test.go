package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestWhereTheServerIs(t *testing.T) {
	const forwarded = "ipwitness: there is no kubeconfig to find the cluster by: -P needs what kubectl needs, " +
		"KUBECONFIG or ~/.kube/config; without Kubernetes leave out -P, and use --server\n"
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	asked := handler{"/v1/owners": func(*http.Request) (int, string) { return ok(&pb.ListOwnersResponse{})(nil) }}
	for _, test := range []struct {
		args, env string
		want      string
	}{
		{args: "-P", want: forwarded},
		{args: "-Pn net", want: forwarded},
		{args: "-P --context c", want: "ipwitness: read the kubeconfig: context \"c\" does not exist\n"},
		{args: "", env: "PORT_FORWARD=true", want: forwarded},
		{args: "-P --server http://127.0.0.1:1", want: "ipwitness: --server and --port-forward exclude each other: leave out one of them\nRun 'ipwitness owners --help' for usage.\n"},
		{args: "--server SERVER", env: "PORT_FORWARD=true", want: "No owners: "},
		{args: "", env: "NAMESPACE=net", want: "No owners: "},
		{args: "--namespace net", want: "ipwitness: --namespace says where the aggregator is in Kubernetes, and needs -P\nRun 'ipwitness owners --help' for usage.\n"},
		{args: "--context c", want: "ipwitness: --context says where the aggregator is in Kubernetes, and needs -P\nRun 'ipwitness owners --help' for usage.\n"},
		{args: "--namespace net", env: "PORT_FORWARD=true", want: forwarded},
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

func TestACommandWithoutAServerTakesNoPortForward(t *testing.T) {
	c := newConsole()
	c.run(t, 1, "version", "-P")
	if !strings.Contains(c.stderr.String(), "unknown shorthand flag: 'P'") {
		t.Errorf("got %q, want that the flag is not known", &c.stderr)
	}
}
