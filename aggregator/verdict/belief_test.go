package verdict

import (
	"net/netip"
	"slices"
	"testing"
)

func TestWhichOwnerReceivesWhatIsSent(t *testing.T) {
	const own, derived = MAC("\x02\x00\x00\x00\x00\x01"), MAC("\x02\x42\x0a\x00\x00\x07")
	addr := netip.MustParseAddr("10.0.0.7")
	node := &Node{Name: "n1"}
	links := []*Link{{Node: node, Name: "a"}, {Node: node, Name: "b"}, {Node: node, Name: "c"}}
	owner := func(id string, l int, mac MAC) *Owner {
		ns := &Namespace{Node: node, ID: id}
		return &Owner{ID: id, Node: node, Namespace: ns, MAC: mac, Claims: []*Claim{{Kind: Assigned, Interface: &Interface{Namespace: ns, Link: links[l], MAC: mac}}}}
	}
	for _, test := range []struct {
		name   string
		owners []*Owner
		link   int
		mac    MAC
		want   []int
		met    bool
	}{
		{"the owner on the link", []*Owner{owner("x", 0, own), owner("y", 0, "other1")}, 0, own, []int{0}, true},
		{"no owner on the link", []*Owner{owner("x", 0, "other2"), owner("y", 0, "other1")}, 0, own, nil, true},
		{"two owners on the link with one MAC", []*Owner{owner("x", 0, derived), owner("y", 0, derived)}, 0, derived, []int{0, 1}, true},
		{"two owners with one MAC on two links", []*Owner{owner("x", 0, derived), owner("y", 1, derived)}, 1, derived, []int{1}, true},
		{"an owner whose link is not known to be the same", []*Owner{owner("x", 0, own)}, 2, own, []int{0}, false},
		{"the same, with a MAC that several hosts have", []*Owner{owner("x", 0, derived)}, 2, derived, nil, false},
		{"the network of others", []*Owner{owner("x", 0, "other1")}, 2, own, nil, false},
	} {
		b := Belief{Link: links[test.link], MAC: test.mac}
		if got, met := b.ReceivedBy(test.owners, addr); !slices.Equal(got, test.want) || met != test.met {
			t.Errorf("%s: got %v, %t, want %v, %t", test.name, got, met, test.want, test.met)
		}
	}
}
