package main

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

var now = time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC)

// console is the system on which a command line runs, with its output.
type console struct {
	system
	env            map[string]string
	stdout, stderr bytes.Buffer
}

// noDataDir is the environment of commands that must not use the data directory of this machine.
func noDataDir(name string) string {
	if name == "IPWITNESS_DATA_DIR" {
		return "off"
	}
	return ""
}

func newConsole() *console {
	c := &console{env: map[string]string{"IPWITNESS_DATA_DIR": "off"}}
	c.system = system{
		program:   "ipwitness",
		stdout:    &c.stdout,
		stderr:    &c.stderr,
		getenv:    func(name string) string { return c.env[name] },
		now:       func() time.Time { return now },
		transport: &http.Transport{},
	}
	return c
}

// run runs a command line and checks its exit code.
func (c *console) run(t *testing.T, wantCode int, args ...string) {
	t.Helper()
	if code := execute(t.Context(), c.system, args); code != wantCode {
		t.Errorf("ipwitness %s: got exit code %d, want %d; stderr:\n%s", strings.Join(args, " "), code, wantCode, &c.stderr)
	}
}

// wantStderr checks the output on stderr.
func (c *console) wantStderr(t *testing.T, want string) {
	t.Helper()
	if got := c.stderr.String(); got != want {
		t.Errorf("got on stderr\n%s\nwant\n%s", got, want)
	}
}

// handler maps requests to the answers of a server. A path that ends with a slash is that of all paths
// below it.
type handler map[string]func(r *http.Request) (status int, body string)

// of returns the answer for a path; nil if there is none.
func (h handler) of(p string) func(r *http.Request) (status int, body string) {
	if answer, ok := h[p]; ok {
		return answer
	}
	return h[path.Dir(p)+"/"]
}

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := about(r, h.of(r.URL.Path))
	if answer == nil {
		http.NotFound(w, r)
		return
	}
	status, body := answer(r)
	w.WriteHeader(status)
	fmt.Fprint(w, body)
}

// serve starts a server and returns a console that queries it.
func serve(t *testing.T, h handler) *console {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c := newConsole()
	c.env["IPWITNESS_SERVER"] = s.URL
	return c
}

// ok returns a handler that answers with a message.
func ok(m proto.Message) func(*http.Request) (int, string) {
	return func(*http.Request) (int, string) { return http.StatusOK, protojson.Format(m) }
}

func conflict(id string, state pb.Conflict_State) *pb.Conflict {
	return &pb.Conflict{
		Id: id, Address: "10.0.0.7", State: state, Summary: "Two hold it.", DetectedAt: timestamppb.New(now.Add(-time.Minute)),
		Owners: []*pb.Owner{
			{Address: "10.0.0.7", Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "a", Name: "x"}},
			{Address: "10.0.0.7", Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "b", Name: "y"}},
		},
	}
}

func acknowledged(id string) *pb.Conflict {
	c := conflict(id, pb.Conflict_CONFIRMED)
	c.Acknowledgement = &pb.Acknowledgement{Reason: "NET-42", AcknowledgedAt: timestamppb.New(now), ExpiresAt: timestamppb.New(now.Add(time.Hour))}
	return c
}

func TestExitCodes(t *testing.T) {
	list := func(states ...pb.Conflict_State) handler {
		out := pb.ListConflictsResponse{Coverage: everything}
		for i, s := range states {
			out.Conflicts = append(out.Conflicts, conflict(fmt.Sprint("id", i), s))
		}
		return handler{
			"/v1/conflicts": ok(&out),
			"/v1/owners":    func(*http.Request) (int, string) { return 400, `{"code":3,"message":"no such address"}` },
		}
	}
	known := handler{"/v1/conflicts": ok(&pb.ListConflictsResponse{Conflicts: []*pb.Conflict{acknowledged("ack"), conflict("abc", pb.Conflict_SUSPECTED)}, Coverage: everything})}
	tests := map[string]struct {
		server handler
		args   []string
		want   int
	}{
		"none":                          {list(), []string{"conflicts", "--exit-code"}, 0},
		"suspected":                     {list(pb.Conflict_SUSPECTED), []string{"conflicts", "--exit-code"}, 0},
		"resolved":                      {list(pb.Conflict_RESOLVED), []string{"conflicts", "--exit-code", "--all"}, 0},
		"confirmed":                     {list(pb.Conflict_SUSPECTED, pb.Conflict_CONFIRMED), []string{"conflicts", "--exit-code"}, 2},
		"confirmed, as JSON":            {list(pb.Conflict_CONFIRMED), []string{"conflicts", "--exit-code", "-o", "json"}, 2},
		"confirmed, not asked":          {list(pb.Conflict_CONFIRMED), []string{"conflicts"}, 0},
		"one by id":                     {list(pb.Conflict_CONFIRMED), []string{"conflicts", "id0", "--exit-code"}, 2},
		"one by address":                {list(pb.Conflict_CONFIRMED), []string{"conflicts", "10.0.0.7", "--exit-code"}, 2},
		"acknowledged":                  {known, []string{"conflicts", "--exit-code"}, 0},
		"acknowledged, by id":           {known, []string{"conflicts", "ack", "--exit-code"}, 0},
		"the server refuses":            {list(), []string{"owners"}, 1},
		"not a server of ours":          {handler{}, []string{"conflicts", "--exit-code"}, 1},
		"watch and exit code":           {list(), []string{"conflicts", "--exit-code", "-w"}, 1},
		"no argument for explain":       {list(), []string{"explain"}, 1},
		"two arguments":                 {list(), []string{"owners", "a", "b"}, 1},
		"unknown command":               {list(), []string{"ownerz"}, 1},
		"unknown flag":                  {list(), []string{"owners", "--nope"}, 1},
		"unknown format":                {list(), []string{"owners", "-o", "xml"}, 1},
		"help":                          {list(), []string{"owners", "--help"}, 0},
		"no command":                    {list(), []string{}, 0},
		"version":                       {list(), []string{"version", "-o", "yaml"}, 0},
		"completion":                    {list(), []string{"completion", "zsh"}, 0},
		"id of a conflict as a path":    {list(), []string{"conflicts", "../owners"}, 1},
		"argument that cannot be asked": {list(), []string{"owners", "10.0.0.0/33"}, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { serve(t, test.server).run(t, test.want, test.args...) })
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	refused := httptest.NewServer(nil)
	refused.Close()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	unknownKey := file("unknown.yaml", "cluster: x\nhttp_listen: :1\n")
	listForOne := file("list.yaml", "cluster: [a, b]\n")
	badValue := file("value.yaml", "\nsettle: 5\n")
	tests := map[string]struct {
		args []string
		env  map[string]string
		want string
	}{
		"no server": {
			[]string{"owners", "--server", refused.URL},
			nil,
			"ipwitness: cannot reach " + refused.URL + ": connection refused: start it with 'ipwitness run', or select another server with --server or IPWITNESS_SERVER\n",
		},
		"no server to watch": {
			[]string{"owners", "-w", "--server", refused.URL},
			nil,
			"ipwitness: cannot reach " + refused.URL + ": connection refused: start it with 'ipwitness run', or select another server with --server or IPWITNESS_SERVER\n",
		},
		"bad server": {
			[]string{"owners", "--server", "ftp://x"},
			nil,
			"ipwitness: --server: \"ftp://x\" is not the URL of a server: write it like http://127.0.0.1:9641\nRun 'ipwitness owners --help' for usage.\n",
		},
		"credentials in the URL of NATS": {
			[]string{"aggregator", "--nats", "nats://user:secret@nats:4222"},
			nil,
			"ipwitness: --nats: it must be a URL like nats://nats.example.net:4222, without credentials: see --nats-creds\nRun 'ipwitness aggregator --help' for usage.\n",
		},
		"settings of NATS without its servers": {
			[]string{"aggregator", "--nats-creds", badValue, "--http-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"},
			nil,
			"ipwitness: the other --nats-… flags need --nats\n",
		},
		"token for NATS without TLS": {
			[]string{"aggregator", "--nats", "nats://nats:4222", "--nats-token-file", badValue, "--http-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"},
			nil,
			"ipwitness: --nats-token-file is not sent to nats://nats:4222 without TLS, because it could be read in transit: use tls:// or wss:// in every --nats URL, or set --nats-ca; or use --nats-nkey or --nats-creds, whose secrets are never sent\n",
		},
		"bad environment": {
			[]string{"run"},
			map[string]string{"IPWITNESS_STALE_AFTER": "soon"},
			"ipwitness: IPWITNESS_STALE_AFTER: \"soon\" is not a duration greater than 0: write it like 500ms, 30m or 7d\nRun 'ipwitness run --help' for usage.\n",
		},
		"negative": {
			[]string{"run", "--settle", "-1s"},
			nil,
			"ipwitness: --settle: \"-1s\" is not a duration greater than 0: write it like 500ms, 30m or 7d\nRun 'ipwitness run --help' for usage.\n",
		},
		"bad glob": {
			[]string{"run", "--interfaces", "eth0,[a"},
			nil,
			"ipwitness: --interfaces: \"[a\" is not a pattern: * matches any characters, ? matches one, [a-c] matches one of a set\nRun 'ipwitness run --help' for usage.\n",
		},
		"bad wire": {
			[]string{"run", "--wire", "xdp"},
			nil,
			"ipwitness: --wire: \"xdp\" is not one of auto, tcx, clsact, off\nRun 'ipwitness run --help' for usage.\n",
		},
		"shared without a reason": {
			[]string{"run", "--shared", "10.9.0.0/24"},
			nil,
			"ipwitness: --shared: \"10.9.0.0/24\" has no reason: write CIDR=REASON, like 10.9.0.0/24=anycast\nRun 'ipwitness run --help' for usage.\n",
		},
		"router without a reason": {
			[]string{"run", "--router", "kube-system/vpn-*"},
			nil,
			"ipwitness: --router: \"kube-system/vpn-*\" has no reason: write WHO=REASON, like kube-system/vpn-*=gateway\nRun 'ipwitness run --help' for usage.\n",
		},
		"router without a name": {
			[]string{"run", "--router", "=gateway"},
			nil,
			"ipwitness: --router: \"=gateway\" has no workload: write WHO=REASON, like kube-system/vpn-*=gateway\nRun 'ipwitness run --help' for usage.\n",
		},
		"shared with a long address": {
			[]string{"run", "--shared", "10.9.0.5/24=anycast"},
			nil,
			"ipwitness: --shared: \"10.9.0.5/24\" has bits beyond its mask: write 10.9.0.0/24 or, for one address, 10.9.0.5/32\nRun 'ipwitness run --help' for usage.\n",
		},
		"no port": {
			[]string{"aggregator", "--grpc-listen", "127.0.0.1:0", "--http-listen", "localhost"},
			nil,
			"ipwitness: --http-listen: \"localhost\" is not HOST:PORT: write it like 127.0.0.1:9641 or, for all addresses of this host, :9641\nRun 'ipwitness aggregator --help' for usage.\n",
		},
		"network without addresses": {
			[]string{"aggregator", "--network", "pods"},
			nil,
			"ipwitness: --network: \"pods\" has no CIDR: write NAME=CIDR, like pods=10.244.0.0/16\nRun 'ipwitness aggregator --help' for usage.\n",
		},
		"network without a name": {
			[]string{"aggregator", "--network", "=10.244.0.0/16"},
			nil,
			"ipwitness: --network: the name is empty\nRun 'ipwitness aggregator --help' for usage.\n",
		},
		"network that is none": {
			[]string{"run", "--network", "pods=10.244.0.0/16,10.245.0.1/16"},
			nil,
			"ipwitness: --network: \"10.245.0.1/16\" has bits beyond its mask: write 10.245.0.0/16 or, for one address, 10.245.0.1/32\nRun 'ipwitness run --help' for usage.\n",
		},
		"not a bool": {
			[]string{"conflicts", "--all=maybe"},
			nil,
			"ipwitness: --all: \"maybe\" is neither true nor false\nRun 'ipwitness conflicts --help' for usage.\n",
		},
		"flag with a slip": {
			[]string{"run", "--http-lisen", ":1"},
			nil,
			"ipwitness: unknown flag --http-lisen: did you mean --http-listen?\nRun 'ipwitness run --help' for usage.\n",
		},
		"command with a slip": {
			[]string{"conflict"},
			nil,
			"ipwitness: unknown command \"conflict\" for \"ipwitness\"\n\nDid you mean this?\n\tconflicts\nRun 'ipwitness --help' for usage.\n",
		},
		"key of the file": {
			[]string{"run", "--config", unknownKey},
			nil,
			"ipwitness: " + unknownKey + ", line 2: \"http_listen\" is not a flag name: keys are flag names without dashes, like http-listen\nRun 'ipwitness run --help' for usage.\n",
		},
		"list in the file": {
			[]string{"run", "--config", listForOne},
			nil,
			"ipwitness: " + listForOne + ", line 1: cluster takes one value, not a list\nRun 'ipwitness run --help' for usage.\n",
		},
		"value in the file": {
			[]string{"run"},
			map[string]string{"IPWITNESS_CONFIG": badValue},
			"ipwitness: " + badValue + ", line 2: settle: \"5\" is not a duration greater than 0: write it like 500ms, 30m or 7d\nRun 'ipwitness run --help' for usage.\n",
		},
		"no file": {
			[]string{"nodes", "--config", "/nowhere/x.yaml"},
			nil,
			"ipwitness: read the settings of --config: open /nowhere/x.yaml: no such file or directory\nRun 'ipwitness nodes --help' for usage.\n",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newConsole()
			maps.Copy(c.env, test.env)
			c.run(t, 1, test.args...)
			c.wantStderr(t, test.want)
			if c.stdout.Len() > 0 {
				t.Errorf("got %q on stdout, want nothing", &c.stdout)
			}
		})
	}
}

func TestServerErrorsAreShownVerbatim(t *testing.T) {
	c := serve(t, handler{"/v1/conflicts": func(*http.Request) (int, string) {
		return 404, `{"code":5, "message":"there is no conflict abc: list them with all=true", "details":[]}`
	}})
	c.run(t, 1, "conflicts", "abc")
	c.wantStderr(t, "ipwitness: there is no conflict abc: list them with all=true\n")
}

func TestOtherServersAreRecognised(t *testing.T) {
	c := serve(t, handler{"/v1/nodes": func(*http.Request) (int, string) { return 200, "<html>" }})
	c.run(t, 1, "owners")
	if got, want := c.stderr.String(), "answered 404 Not Found, but not as an ipwitness server does: check --server"; !strings.Contains(got, want) {
		t.Errorf("got %q, want it to have %q", got, want)
	}
	c.stderr.Reset()
	c.run(t, 1, "nodes")
	if got, want := c.stderr.String(), "did not answer /v1/nodes as an ipwitness server does: check --server"; !strings.Contains(got, want) {
		t.Errorf("got %q, want it to have %q", got, want)
	}
}

func TestListsFollowPages(t *testing.T) {
	var asked []string
	c := serve(t, handler{"/v1/owners": func(r *http.Request) (int, string) {
		asked = append(asked, r.URL.RawQuery)
		page := &pb.ListOwnersResponse{Owners: []*pb.Owner{{Address: fmt.Sprintf("10.0.0.%d", len(asked))}}}
		if len(asked) < 3 {
			page.NextPageToken = fmt.Sprint("page", len(asked)+1)
		}
		return ok(page)(r)
	}})
	c.run(t, 0, "owners", "10.0.0.0/8", "-o", "json")
	want := []string{"about=10.0.0.0%2F8", "about=10.0.0.0%2F8&page_token=page2", "about=10.0.0.0%2F8&page_token=page3"}
	if fmt.Sprint(asked) != fmt.Sprint(want) {
		t.Errorf("got requests %v, want %v", asked, want)
	}
	for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		if !strings.Contains(c.stdout.String(), address) {
			t.Errorf("got %s, want %s in it", &c.stdout, address)
		}
	}
}

func TestEmptyListsAreExplainedOnStderr(t *testing.T) {
	h := handler{
		"/v1/owners":    ok(&pb.ListOwnersResponse{}),
		"/v1/conflicts": ok(&pb.ListConflictsResponse{}),
		"/v1/nodes":     ok(&pb.ListNodesResponse{}),
	}
	tests := []struct{ args, stdout, stderr string }{
		{"owners", "", "No owners: no agent has reported an address yet. 'ipwitness nodes' lists the agents.\n"},
		{"owners 10.0.0.1", "", "No owner of 10.0.0.1.\n"},
		{"owners default/web", "", "No owner of default/web.\n"},
		{"owners -o json", "{\n  \"owners\": []\n}\n", ""},
		{"conflicts", "", "No conflicts.\n"},
		{"conflicts 10.0.0.1", "", "No conflict is about 10.0.0.1. 'ipwitness explain 10.0.0.1' shows why.\n"},
		{"conflicts -o yaml", "conflicts: []\n", ""},
		{"nodes", "", "No nodes: no agent has connected yet.\n"},
		{"nodes -o json", "{\n  \"nodes\": [],\n  \"problems\": []\n}\n", ""},
	}
	for _, test := range tests {
		t.Run(test.args, func(t *testing.T) {
			c := serve(t, h)
			c.run(t, 0, strings.Fields(test.args)...)
			c.wantStderr(t, test.stderr)
			if c.stdout.String() != test.stdout {
				t.Errorf("got %q on stdout, want %q", &c.stdout, test.stdout)
			}
		})
	}
}

func TestWorkloadNamesSelectOwners(t *testing.T) {
	owner := func(name string) *pb.Owner {
		return &pb.Owner{Address: "10.0.0.1", Workload: &pb.Workload{Kind: pb.Workload_CONTAINER, Name: name}}
	}
	c := serve(t, handler{"/v1/owners": ok(&pb.ListOwnersResponse{Owners: []*pb.Owner{owner("web"), owner("web-2")}})})
	c.run(t, 0, "owners", "container/web")
	if got := strings.Count(c.stdout.String(), "container/web"); got != 1 {
		t.Errorf("got %d owners, want 1:\n%s", got, &c.stdout)
	}
}

func TestExplainTakesAnID(t *testing.T) {
	var asked, senders string
	c := serve(t, handler{
		"/v1/conflicts": ok(&pb.ListConflictsResponse{Conflicts: []*pb.Conflict{conflict("abc", pb.Conflict_CONFIRMED)}}),
		"/v1/explain": func(r *http.Request) (int, string) {
			asked, senders = r.URL.Query().Get("address"), r.URL.Query().Get("senders")
			return ok(&pb.ExplainResponse{Address: asked, Summary: "Because."})(r)
		},
	})
	c.run(t, 0, "explain", "abc")
	if asked != "10.0.0.7" || senders != "true" || !strings.HasPrefix(c.stdout.String(), "Because.\n") {
		t.Errorf("got an explanation of %q: %q", asked, &c.stdout)
	}
}

func TestNewFieldsOfAServerAreSkipped(t *testing.T) {
	c := serve(t, handler{"/v1/nodes": func(*http.Request) (int, string) {
		return 200, `{"nodes":[{"name":"n1","colour":"green"}],"more":1}`
	}})
	c.run(t, 0, "nodes")
	if !strings.Contains(c.stdout.String(), "n1") {
		t.Errorf("got %q, want node n1", &c.stdout)
	}
}

func TestCompletionOffersConflicts(t *testing.T) {
	c := serve(t, handler{"/v1/conflicts": ok(&pb.ListConflictsResponse{Conflicts: []*pb.Conflict{conflict("abc", pb.Conflict_CONFIRMED)}})})
	c.run(t, 0, "__complete", "conflicts", "")
	if got, want := c.stdout.String(), "abc\tCONFIRMED 10.0.0.7: a/x | b/y\n:4\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPluginUsesItsKubectlName(t *testing.T) {
	for arg0, want := range map[string]string{"/usr/local/bin/kubectl-ipwitness": "kubectl ipwitness", "kubectl_ipwitness": "kubectl ipwitness", "bin/ipwitness": "ipwitness"} {
		if got, plugin := programName(arg0); got != want || plugin != strings.HasPrefix(want, "kubectl") {
			t.Errorf("%s: got %q, %t, want it to name the command %s", arg0, got, plugin, want)
		}
	}
	c := newConsole()
	c.program, c.plugin = "kubectl ipwitness", true
	c.run(t, 0, "owners", "--help")
	for _, want := range []string{"Usage:\n  kubectl ipwitness owners [", "  kubectl ipwitness owners 10.244.0.7 -o wide\n"} {
		if !strings.Contains(c.stdout.String(), want) {
			t.Errorf("got\n%s\nwant %q in it", &c.stdout, want)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, name := range []string{"ipwitness", "run", "aggregator", "owners", "conflicts", "explain", "history", "judge", "audit", "acknowledge", "nodes", "top", "doctor", "version"} {
		t.Run(name, func(t *testing.T) {
			c := newConsole()
			c.run(t, 0, "help", strings.TrimPrefix(name, "ipwitness"))
			if len(c.stdout.String()) < 100 || c.stderr.Len() > 0 {
				t.Errorf("got %q and %q, want a help text", &c.stdout, &c.stderr)
			}
			for line := range strings.Lines(c.stdout.String()) {
				if len(strings.TrimRight(line, "\n")) > 140 {
					t.Errorf("got a line of %d bytes, want 140 at most: %s", len(line), line)
				}
			}
		})
	}
}
