package main

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// testMain is the variable that makes the test program behave as ipwitness.
const testMain = "IPWITNESS_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(testMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// known returns a server with pods of two namespaces, a host, conflicts, findings and nodes.
func known() handler {
	pod := func(address, namespace, name, node string) *pb.Owner {
		return &pb.Owner{
			Address: address, Node: node, Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: namespace, Name: name},
			Scope: &pb.Scope{Kind: pb.Scope_NETWORK, Name: "pods"},
		}
	}
	all := []*pb.Owner{
		pod("10.244.0.7", "default", "web-1", "node-1"), pod("10.244.0.8", "default", "web-2", "node-2"), pod("10.244.1.9", "shop", "cart", "node-2"),
		pod("fd00:10:244::7", "shop", "cart", "node-2"),
		{Address: "10.0.0.1", Node: "node-1", Workload: &pb.Workload{Kind: pb.Workload_HOST}},
	}
	h := covered(&pb.Coverage{Expected: 3, Heard: 2, SilentNodes: []string{"node-3"}}, true)
	h["/v1/owners"] = func(r *http.Request) (int, string) {
		q := r.URL.Query()
		page := &pb.ListOwnersResponse{}
		for _, o := range all {
			cidr, err := netip.ParsePrefix(q.Get("cidr"))
			if (q.Get("node") == "" || q.Get("node") == o.GetNode()) && (q.Get("namespace") == "" || q.Get("namespace") == o.GetWorkload().GetNamespace()) &&
				(err != nil || cidr.Contains(netip.MustParseAddr(o.GetAddress()))) {
				page.Owners = append(page.Owners, o)
			}
		}
		return ok(page)(r)
	}
	h["/v1/conflicts"] = ok(&pb.ListConflictsResponse{Conflicts: []*pb.Conflict{conflict("abc", pb.Conflict_CONFIRMED)}})
	h["/v1/findings"] = ok(&pb.ListFindingsResponse{Findings: []*pb.Finding{{Id: "leak1", Kind: "leaked", Address: "10.244.0.99", Severity: pb.Finding_WARNING}}})
	h["/v1/nodes"] = ok(&pb.ListNodesResponse{
		Nodes:    []*pb.Node{{Name: "node-1", State: pb.Node_LIVE}, {Name: "node-2", State: pb.Node_LIVE}},
		Coverage: &pb.Coverage{SilentNodes: []string{"node-3"}},
	})
	return h
}

func TestCompletion(t *testing.T) {
	for _, test := range []struct {
		args string
		want []string
	}{
		{"conflicts ", []string{"abc\tCONFIRMED 10.0.0.7: a/x | b/y"}},
		{"conflicts 10.0.", []string{"10.0.0.1\thost/node-1", "10.0.0.7\tCONFIRMED: a/x | b/y"}},
		{"conflicts abc ", nil},
		{"acknowledge a", []string{"abc\tCONFIRMED 10.0.0.7: a/x | b/y", "abcd\tCRITICAL It is held twice."}},
		{"explain 10.244.1.", []string{"10.244.1.9\tshop/cart"}},
		{"explain fd00:10:", []string{"fd00:10:244::7\tshop/cart"}},
		{"owners ", []string{"default/web-1\t10.244.0.7 on node-1", "default/web-2\t10.244.0.8 on node-2", "host/node-1\t10.0.0.1 on node-1", "shop/cart\t10.244.1.9 on node-2"}},
		{"owners default/web-1 ", nil},
		{"owners sh", []string{"shop/cart\t10.244.1.9 on node-2"}},
		{"owners 10.244.0", []string{"10.244.0.7\tdefault/web-1", "10.244.0.8\tdefault/web-2", "10.244.0.99\tWARNING leaked: 10.244.0.99"}},
		{"owners --node node-1 10.244.0.", []string{"10.244.0.7\tdefault/web-1", "10.244.0.99\tWARNING leaked: 10.244.0.99"}},
		{"owners -n default ", []string{"web-1\t10.244.0.7 on node-1", "web-2\t10.244.0.8 on node-2"}},
		{"owners -n default default/web-2", []string{"default/web-2\t10.244.0.8 on node-2"}},
		{"history shop/", []string{"shop/cart\t10.244.1.9 on node-2"}},
		{"history node-3", []string{"node-3\tdisconnected"}},
		{"audit ", []string{"leak1\tWARNING leaked: 10.244.0.99", "node-1\tLIVE", "node-2\tLIVE", "node-3\tdisconnected"}},
		{"audit 10.244.0.9", []string{"10.244.0.99\tWARNING leaked: 10.244.0.99"}},
		{"owners --node ", []string{"node-1\tLIVE", "node-2\tLIVE", "node-3\tdisconnected"}},
		{"conflicts --node node-2", []string{"node-2\tLIVE"}},
		{"owners -n ", []string{"default", "shop"}},
		{"owners --namespace s", []string{"shop"}},
		{"owners --workload ", []string{"default", "shop"}},
		{"owners --workload shop/", []string{"shop/cart\t10.244.1.9 on node-2"}},
		{"owners --scope ", []string{"link", "network", "node"}},
		{"owners --scope network/", []string{"network/pods"}},
		{"conflicts --cause split", []string{"split-brain"}},
		{"conflicts --state ", []string{"confirmed", "resolved", "suspected"}},
		{"audit --kind leak", []string{"leaked"}},
		{"owners --mac ", nil},
		{"owners --cidr ", nil},
		{"owners -o y", []string{"yaml"}},
		{"owners --color ", []string{"always", "auto", "never"}},
	} {
		t.Run(test.args, func(t *testing.T) {
			c := serve(t, known())
			c.run(t, 0, append([]string{"__complete"}, strings.Split(test.args, " ")...)...)
			lines := strings.Split(strings.TrimSuffix(c.stdout.String(), "\n"), "\n")
			if end := lines[len(lines)-1]; end != ":4" { // no file names
				t.Errorf("got the directive %q, want :4", end)
			}
			got := lines[:len(lines)-1]
			slices.Sort(got)
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestTemplatesAreCompletedWithoutASpace(t *testing.T) {
	c := newConsole()
	c.run(t, 0, "__complete", "owners", "-o", "json")
	if got, want := c.stdout.String(), "json\njsonpath=\n:4\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	c.stdout.Reset()
	c.run(t, 0, "__complete", "owners", "-o", "jsonp")
	if got, want := c.stdout.String(), "jsonpath=\n:6\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCompletionIsLimited(t *testing.T) {
	asked := 0
	c := serve(t, handler{"/v1/owners": func(r *http.Request) (int, string) {
		asked++
		page := &pb.ListOwnersResponse{NextPageToken: "more"}
		for i := range 60 {
			page.Owners = append(page.Owners, &pb.Owner{Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "a", Name: fmt.Sprintf("p-%d-%d", asked, i)}})
		}
		return ok(page)(r)
	}})
	c.run(t, 0, "__complete", "owners", "a/")
	if got := strings.Count(c.stdout.String(), "a/p-"); got != mostCandidates || asked != 2 {
		t.Errorf("got %d candidates from %d pages, want %d from 2", got, asked, mostCandidates)
	}
}

func TestCompletionIsQuietWithoutAServer(t *testing.T) {
	c := newConsole()
	c.env["IPWITNESS_SERVER"] = "http://127.0.0.1:1"
	for _, args := range []string{"owners ", "conflicts ", "audit ", "owners --node ", "owners -n ", "history a"} {
		c.stdout.Reset()
		c.run(t, 0, append([]string{"__complete"}, strings.Split(args, " ")...)...)
		if got := c.stdout.String(); got != ":4\n" {
			t.Errorf("%s: got %q, want no candidates", args, got)
		}
	}
	if got := c.stderr.String(); strings.Contains(got, "127.0.0.1") {
		t.Errorf("got %q on stderr, want nothing about the server", got)
	}
}

func TestContextsAreCompleted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte("apiVersion: v1\nkind: Config\ncontexts:\n- {name: prod, context: {}}\n- {name: dev, context: {}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newConsole()
	c.run(t, 0, "__complete", "owners", "--kubeconfig", file, "--context", "")
	if got, want := c.stdout.String(), "dev\nprod\n:4\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// shells returns a directory with this program under its names, and the environment of a shell that
// completes for a server with known owners.
func shells(t *testing.T) (dir string, env []string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for _, name := range []string{"ipwitness", "kubectl-ipwitness"} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	c := serve(t, known())
	return dir, append(os.Environ(), testMain+"=1", "HOME="+dir, "PATH="+dir+":"+os.Getenv("PATH"), "IPWITNESS_SERVER="+c.env["IPWITNESS_SERVER"])
}

func TestBashCompletes(t *testing.T) {
	_, env := shells(t)
	const script = `
		. /usr/share/bash-completion/bash_completion
		. <(ipwitness completion bash)
		complete_line() { # as readline does: words also end at colons
			COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
			read -ra COMP_WORDS <<<"${1//:/ : }"
			case $1 in *' ') COMP_WORDS+=('') ;; esac
			COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
			compopt() { :; }
			__start_ipwitness
			printf '%s\n' "${COMPREPLY[@]}"
		}
		complete_line "$1"`
	for line, want := range map[string]string{
		"ipwitness owners --node ":      "node-1,node-2,node-3",
		"ipwitness owners -n default w": "web-1,web-2",
		"ipwitness owners shop/":        "shop/cart",
		"ipwitness owners fd00:10:":     "244::7", // bash has completed the words before the last colon
		"ipwitness explain 10.244.1.":   "10.244.1.9",
		"ipwitness conflicts abc":       "abc,abcd",
	} {
		cmd := exec.Command("bash", "--norc", "-c", script, "bash", line)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		var got []string
		for reply := range strings.Lines(string(out)) {
			value, _, _ := strings.Cut(strings.TrimSpace(reply), " ") // a description follows
			got = append(got, value)
		}
		if strings.Join(got, ",") != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", line, out, err, want)
		}
	}
}

func TestFishCompletes(t *testing.T) {
	_, env := shells(t)
	cmd := exec.Command("fish", "--no-config", "-c", "ipwitness completion fish | source; complete -C 'ipwitness owners --node '")
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	if want := "node-1\tLIVE\nnode-2\tLIVE\nnode-3\tdisconnected\n"; string(out) != want || err != nil {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}

// kubectl runs kubectl_complete-ipwitness with the arguments after the name of the plugin, and reads
// what cobra's __complete prints.
func TestKubectlCompletes(t *testing.T) {
	dir, env := shells(t)
	script, err := filepath.Abs("../../deploy/kubectl/kubectl_complete-ipwitness")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(script, filepath.Join(dir, "kubectl_complete-ipwitness")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "--norc", "-c", `kubectl_complete-ipwitness "$@" 2>/dev/null`, "bash", "owners", "-n", "default", "")
	cmd.Env = env
	out, err := cmd.Output()
	if want := "web-1\t10.244.0.7 on node-1\nweb-2\t10.244.0.8 on node-2\n:4\n"; string(out) != want || err != nil {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}
