package verdict_test

import (
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// An announcement with a MAC that the owner's interface had before counts on a link. Some frames entered a port that is on none.
func TestAnAnnouncementOnNoLinkIsNotThatOfAFormerMAC(t *testing.T) {
	ns := &verdict.Namespace{ID: "n1/1", Node: &verdict.Node{Name: "n1"}}
	c := &verdict.Claim{Kind: verdict.Announced, Frame: verdict.Frame{MAC: "former", HadMAC: &verdict.Interface{Namespace: ns}}}
	o := verdict.Owner{ID: ns.ID, Node: ns.Node, Namespace: ns, Claims: []*verdict.Claim{c}}
	if got := o.Announced(); got != nil {
		t.Errorf("got %+v on no link, want none", got)
	}
	c.Link = &verdict.Link{Name: "eth0"}
	if got := o.Announced(); got != c {
		t.Errorf("got %+v, want the announcement", got)
	}
}
