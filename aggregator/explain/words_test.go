package explain_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/tests/golden"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// compare compares a text with its file in testdata.
func compare(t *testing.T, file string, text []byte) {
	t.Helper()
	golden.Compare(t, filepath.Join("testdata", file), string(text), "write it with go test -update and read the diff")
}

// constants returns the values of the constants of a type in verdict.
func constants(t *testing.T, typ string) []string {
	t.Helper()
	return valuesOf(t, func(spec *ast.ValueSpec, _ string) bool {
		id, ok := spec.Type.(*ast.Ident)
		return ok && id.Name == typ
	})
}

// valuesOf returns the values of the selected constants of package verdict.
func valuesOf(t *testing.T, wanted func(spec *ast.ValueSpec, name string) bool) (values []string) {
	t.Helper()
	files, err := filepath.Glob("../verdict/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, name := range spec.Names {
				if i >= len(spec.Values) || !wanted(spec, name.Name) {
					continue
				}
				if text, ok := spec.Values[i].(*ast.BasicLit); ok && text.Kind == token.STRING {
					value, err := strconv.Unquote(text.Value)
					if err != nil {
						t.Fatal(err)
					}
					values = append(values, value)
				}
			}
			return true
		})
	}
	if len(values) < 5 {
		t.Fatalf("got constants %q, want more", values)
	}
	return values
}

// guested returns a conflict between a device behind a pod's port and a pod.
func guested(t *testing.T) (*verdicttest.World, *verdict.Conflict) {
	t.Helper()
	w := verdicttest.New(verdicttest.DefaultAddr)
	w.Within("n1", "cni0", "cbr0", verdicttest.Who("web"))
	verdicttest.Guest(w, "")
	c := only(t, w)
	slices.SortFunc(c.Owners, func(a, b verdict.Owner) int { return cmp.Compare(b.Guest(), a.Guest()) })
	c.Why = verdict.Why{Cause: verdict.CauseStaticAddress}
	return w, c
}

// disputed returns a conflict between two pods.
func disputed(t *testing.T) (*verdicttest.World, *verdict.Conflict) {
	t.Helper()
	w := verdicttest.New(verdicttest.DefaultAddr)
	verdicttest.Twins(w)
	w.Says("uid-old", verdict.PodObject{Namespace: "default", Name: "old", Phase: "Running", Node: "n1", IPs: []netip.Addr{w.Addr}, DeletionTimestamp: verdicttest.Start})
	c := only(t, w)
	c.Why = verdict.Why{Cause: verdict.CauseStaticAddress, Networks: []verdict.Origin{{Network: "net0"}, {Device: "docker0"}}}
	return w, c
}

// example returns a fact of a kind with all operands.
func example(kind verdict.FactKind, c *verdict.Conflict) verdict.Fact {
	return verdict.Fact{
		Kind: kind, Owners: []string{c.Owners[0].ID, c.Owners[1].ID}, Nodes: []string{"n1", "n2"}, Others: []string{"n3"}, Devices: []string{"n1/eth0", "n2/eth0"},
		Pool:   verdict.PoolName{IPAM: hostlocal.Name, Name: "/var/lib/cni/networks/net0", Node: "n1", Network: "net0"},
		Device: "dev0", Network: "net0",
		Ranges:    verdict.Ranges{List: []ipam.Range{{First: netip.MustParseAddr("10.244.1.1"), Last: netip.MustParseAddr("10.244.1.9")}}},
		Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.77")}, NodeName: ipam.NodeName{Name: "n9", Source: ipam.FileName, File: "/var/lib/calico/nodename"}, Text: "text", At: verdicttest.Start, Count: 3, State: ipam.Known,
		Records: []verdict.Record{{Holder: verdict.Holder{Namespace: "default", Pod: "db", ContainerID: sandboxID, Node: "n9"}, At: verdicttest.Start}, {Owner: c.Owners[0].ID, Holder: verdict.Holder{ContainerID: otherID}}},
	}
}

// TestFacts compares the text of each kind of fact, in every context, with testdata/facts.txt.
func TestFacts(t *testing.T) {
	var b []byte
	for _, kind := range constants(t, "FactKind") {
		dispute := disputed
		switch verdict.FactKind(kind) {
		case verdict.FactGuest, verdict.FactGuestOfOther, verdict.NotGuest:
			dispute = guested
		}
		w, c := dispute(t)
		f := example(verdict.FactKind(kind), c)
		var words []string
		c.Facts = []verdict.Fact{f}
		if text := explain.Conflict(&w.Policy, c).Because[0]; text != "" {
			words = append(words, text)
		}
		c.Facts, c.RuledOut = nil, []verdict.RuledOut{{Cause: verdict.CauseUnknown, Fact: f}}
		if text := explain.Conflict(&w.Policy, c).Excluded[0].Reason; text != "" {
			words = append(words, "not it: "+text)
		}
		c.RuledOut = nil
		without := explain.Conflict(&w.Policy, c).Summary
		c.Headline = &f
		if kind == string(verdict.FactSandboxLeft) {
			c.Facts = []verdict.Fact{f}
		}
		if text := strings.TrimPrefix(explain.Conflict(&w.Policy, c).Summary, without); text != "" {
			words = append(words, "in short:"+text)
		}
		if len(words) == 0 {
			t.Errorf("got no words for %s", kind)
		}
		b = fmt.Appendf(b, "%s\n    %s\n", kind, strings.Join(words, "\n    "))
	}
	compare(t, "facts.txt", b)
}

// TestRecords compares the texts of a pool's records of an address with testdata/records.txt.
func TestRecords(t *testing.T) {
	var b []byte
	w, c := disputed(t)
	for _, state := range []ipam.State{ipam.Known, ipam.Reading, ipam.Missing, ipam.Unreadable, ipam.Stale} {
		for _, records := range [][]verdict.Record{nil, {{Owner: c.Owners[1].ID}}, {{Holder: verdict.Holder{Purpose: "VXLAN tunnel", Node: "n1"}}, {}}} {
			f := example(verdict.FactRecord, c)
			f.State, f.Records = state, records
			c.Facts = []verdict.Fact{f}
			b = fmt.Appendf(b, "%d, %d records\n    %s\n", state, len(records), explain.Conflict(&w.Policy, c).Because[0])
		}
	}
	compare(t, "records.txt", b)
}

// TestEndings compares the text of each ending of a conflict with testdata/endings.txt.
func TestEndings(t *testing.T) {
	var b []byte
	for _, kind := range constants(t, "EndKind") {
		w, c := disputed(t)
		over := c.End(&verdict.Ended{ID: c.ID, At: w.Now, Ending: verdict.Ending{
			Kind: verdict.EndKind(kind), Owner: c.Owners[0].ID, Excluded: &verdict.Exclusion{Rule: verdict.RuleDeclaredShared, Reason: "anycast"},
		}}, nil)
		text := explain.Conflict(&w.Policy, &over)
		if len(text.Remedy) != 0 {
			t.Errorf("got a remedy for a resolved conflict: %v", text.Remedy)
		}
		b = fmt.Appendf(b, "%s\n    %s\n", kind, text.Summary)
		frame := *over.Owners[1].Claims[0]
		frame.Kind, frame.Seen = verdict.Announced, w.Now
		over.Owners[1].State, over.Owners[1].Claims = verdict.Stale, []*verdict.Claim{&frame}
		if silent := explain.Conflict(&w.Policy, &over).Summary; silent != text.Summary {
			b = fmt.Appendf(b, "    %s\n", silent)
		}
	}
	compare(t, "endings.txt", b)
}

// An owner whose kernel refused the address never held it.
func TestARefusedAddressWasClaimed(t *testing.T) {
	w, c := disputed(t)
	for rule, want := range map[string]string{verdict.RuleAssignedTwice: "10.244.1.5 was held by ", verdict.RuleDADFailed: "10.244.1.5 was claimed by "} {
		over := c.End(&verdict.Ended{ID: c.ID, At: w.Now, Ending: verdict.Ending{Kind: verdict.EndOneOwner, Owner: c.Owners[0].ID}}, nil)
		over.Rule = rule
		memory := over.Memory()
		for _, got := range []string{explain.Conflict(&w.Policy, &over).Summary, explain.Remembered(w.Addr, &memory)} {
			if !strings.Contains(got, want) {
				t.Errorf("by rule %s: got %q, want %q in it", rule, got, want)
			}
		}
	}
}

// TestExclusions compares the reasons why owners are not compared with testdata/exclusions.txt.
func TestExclusions(t *testing.T) {
	var b []byte
	w, c := disputed(t)
	plugin := verdict.MAC("\xee\xee\xee\xee\xee\xee")
	for _, e := range []verdict.Exclusion{
		{Rule: verdict.RuleDeclaredShared, Reason: "anycast DNS"},
		{Rule: verdict.RuleLoopbackOrDummy},
		{Rule: verdict.RuleReachableVia, Proxy: verdict.ByPlugin, MAC: plugin},
		{Rule: verdict.RuleReachableVia, Proxy: verdict.ByNoOverride},
		{Rule: verdict.RuleReachableVia, Proxy: verdict.ByManyAddresses},
		{Rule: verdict.RuleReachableVia, Proxy: verdict.ByOwnMAC},
		{Rule: verdict.RuleReachableVia, Proxy: verdict.BySeveralOwners},
		{Rule: verdict.RuleReachableVia, Proxy: verdict.ByKernel},
		{Rule: verdict.RulePrivateLink},
		{Rule: verdict.RuleStale},
		{Rule: verdict.RuleMACCloned, MAC: plugin},
		{Rule: verdict.RuleWeakSource},
		{Rule: verdict.RuleBelieved},
		{Rule: verdict.RuleAddressSpoofed, Port: "veth1", Victims: []string{c.Owners[1].ID, "gone"}},
		{Rule: verdict.RulePassthru},
		{Rule: verdict.RuleLoadShared, MAC: "\x03\x00\x60\x0d\xf0\x0d"},
	} {
		o := c.Owners[0]
		o.Excluded = &e
		b = fmt.Appendf(b, "%s %d\n    %s\n", e.Rule, e.Proxy, explain.Exclusion(&w.Policy, &o, c.Owners))
	}
	compare(t, "exclusions.txt", b)
	if got := explain.Exclusion(&w.Policy, &c.Owners[0], c.Owners); got != "" {
		t.Errorf("got %q for an owner that is compared, want nothing", got)
	}
}

// TestConflicts compares the texts of conflicts with testdata/conflicts, and the explanations of
// their addresses with testdata/addresses.
func TestConflicts(t *testing.T) {
	for _, s := range slices.Concat(verdicttest.Situations, scenes) {
		t.Run(s.Name, func(t *testing.T) {
			w := verdicttest.New(cmp.Or(s.Addr, verdicttest.DefaultAddr))
			s.Build(w)
			e := w.Policy.Explain(w.Case())
			text := explain.Address(&w.Policy, &e)
			b := fmt.Appendf(nil, "%s\n", text.Summary)
			for _, step := range text.Steps {
				if step.Reason == "" {
					t.Errorf("got no words for rule %s", step.Rule)
				}
				b = fmt.Appendf(b, "- %s %s %v: %s\n", step.Rule, step.Scope.Text(), step.Applied, step.Reason)
			}
			file := strings.NewReplacer(" ", "-", ",", "", ":", "", "'", "").Replace(s.Name) + ".txt"
			compare(t, filepath.Join("addresses", file), b)
			if _, c := s.Judge(); c != nil {
				compare(t, filepath.Join("conflicts", file), conflictText(t, w, c))
			}
		})
	}
}

// conflictText returns the complete text of a conflict.
func conflictText(t *testing.T, w *verdicttest.World, c *verdict.Conflict) []byte {
	t.Helper()
	text := explain.Conflict(&w.Policy, c)
	b := fmt.Appendf(nil, "%s\n\nBecause:\n", text.Summary)
	for _, fact := range text.Because {
		b = fmt.Appendf(b, "- %s\n", fact)
	}
	b = append(b, "\nExcluded:\n"...)
	for _, e := range text.Excluded {
		if e.Reason == "" {
			t.Errorf("got no words for why it is not %s", e.Cause)
		}
		b = fmt.Appendf(b, "- %s: %s\n", e.Cause, e.Reason)
	}
	b = append(b, "\nDiagnosis:\n"...)
	for _, d := range text.Diagnosis {
		b = fmt.Appendf(b, "- %s: %s\n", d.Step, d.Answer)
	}
	return written(t, append(b, "\nRemedy:\n"...), "", text.Remedy)
}

// Owners of one name are told apart by what differs, in the summary and in the remedy.
func TestOwnersOfOneNameAreToldApart(t *testing.T) {
	of := func(uid, sandbox string) verdict.Workload {
		w := verdicttest.Pod("web")
		w.UID, w.ContainerID = uid, sandbox
		return w
	}
	for _, test := range []struct {
		name  string
		nodes [2]string
		who   [2]verdict.Workload
		want  [2]string
	}{
		{"on two nodes", [2]string{"n1", "n2"}, [2]verdict.Workload{of("u1", "s1"), of("u1", "s2")}, [2]string{"pod default/web on n1", "pod default/web on n2"}},
		{"other pods", [2]string{"n1", "n1"}, [2]verdict.Workload{of("u1", "s1"), of("u2", "s2")}, [2]string{"pod default/web on n1 with uid u1", "pod default/web on n1 with uid u2"}},
		{"other sandboxes", [2]string{"n1", "n1"}, [2]verdict.Workload{of("u1", "s1"), of("u1", "s2")}, [2]string{"pod default/web on n1 (sandbox s1)", "pod default/web on n1 (sandbox s2)"}},
		{"other namespaces", [2]string{"n1", "n1"}, [2]verdict.Workload{of("u1", "s1"), of("u1", "s1")}, [2]string{"pod default/web on n1 (network namespace 100)", "pod default/web on n1 (network namespace 101)"}},
		{"other names", [2]string{"n1", "n1"}, [2]verdict.Workload{verdicttest.Pod("web"), verdicttest.Pod("db")}, [2]string{"pod default/web on n1", "pod default/db on n1"}},
	} {
		w := verdicttest.New("10.244.1.5")
		c := &verdict.Conflict{Address: w.Addr, Course: verdict.Course{Phase: verdict.Confirmed}, Identity: verdict.Identity{Kind: verdict.NetworkScope, Scope: "pods"}}
		for i, who := range test.who {
			ns := w.Namespace(test.nodes[i], uint32(i+2), strconv.Itoa(100+i), who)
			at := w.Interface(ns, verdict.Interface{Name: "eth0", Attachment: verdict.Peer})
			c.Owners = append(c.Owners, verdict.Owner{ID: ns.ID, Node: ns.Node, Namespace: ns, Interface: at, State: verdict.Live, Assigned: true, Claims: []*verdict.Claim{w.Assigned(at)}})
		}
		text := explain.Conflict(&w.Policy, c)
		if want := "by " + test.want[0] + " and " + test.want[1] + "."; !strings.Contains(strings.ReplaceAll(text.Summary, ": by ", ", by "), want) {
			t.Errorf("%s: got %q, want %q", test.name, text.Summary, want)
		}
		var choices []string
		for _, step := range text.Remedy {
			for _, choice := range step.Choice {
				choices = append(choices, choice.When)
			}
		}
		if want := []string{test.want[0] + " keeps the address", test.want[1] + " keeps the address"}; len(choices) < 2 || !slices.Equal(choices[:2], want) {
			t.Errorf("%s: got choices %q, want %q", test.name, choices, want)
		}
	}
}
