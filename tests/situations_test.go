package tests

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/situations"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// newRow is newLab for a test whose explanation appears in docs/situations.md. Owners are listed in
// the order in which their namespaces were created.
func newRow(t *testing.T, args ...string) *lab {
	t.Helper()
	h := newHost(t)
	h.InOrder = true
	return startLab(t, h, args...)
}

// row checks a row of docs/situations.md: that the rule decided about the address, and that
// `ipwitness explain` prints the text in testdata/situations. The caller has waited for the
// evidence in the text. Data from other sources, such as names, is awaited here.
func (l *lab) row(id, addr, rule string) {
	l.t.Helper()
	if l.t.Failed() {
		return // a wrong result must not update the text
	}
	situations.Check(l.t, "testdata/situations", id, addr, rule, func() situations.Output {
		ask := func(args ...string) string {
			out, err := l.at.Stdout(l.at.Command(binary, append([]string{"explain", addr}, args...)...))
			if err != nil {
				l.t.Fatal(err)
			}
			return out
		}
		return situations.Output{Explanation: l.explain(addr), Printed: ask()}
	})
}

// evidence waits until an owner of an address has these kinds of evidence, each written KIND, KIND
// PORT or KIND NODE/PORT.
func (l *lab) evidence(addr, name string, ways ...string) {
	l.t.Helper()
	wait.Until(l.t, fmt.Sprintf("%s of %s to be witnessed by %v", addr, name, ways), func() bool {
		seen := map[string]bool{}
		for _, o := range l.owners("?address=" + addr) {
			if o.GetWorkload().GetName() != name {
				continue
			}
			for _, e := range o.GetEvidence() {
				_, port, _ := strings.Cut(e.GetWitness(), "/")
				seen[e.GetKind().String()] = true
				seen[e.GetKind().String()+" "+port] = true
				seen[e.GetKind().String()+" "+e.GetWitness()] = true
			}
		}
		return !slices.ContainsFunc(ways, func(w string) bool { return !seen[w] })
	})
}
