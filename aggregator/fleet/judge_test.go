package fleet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/api"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

var someAddress = netip.MustParseAddr("10.0.0.1")

// owner returns an owner of a cluster, changed by the functions.
func owner(cluster, node string, change ...func(*pb.Owner)) *pb.Owner {
	o := &pb.Owner{Address: "10.0.0.1", Cluster: cluster, Node: node, Netns: "1", State: pb.Owner_LIVE, Workload: &pb.Workload{Kind: pb.Workload_POD, Name: "p"}}
	for _, do := range change {
		do(o)
	}
	return o
}

func TestOwnersOfDifferentClustersAreRivals(t *testing.T) {
	shared := func(o *pb.Owner) { o.Excluded = "anycast" }
	external := func(o *pb.Owner) { o.Workload.Kind = pb.Workload_EXTERNAL }
	stale := func(o *pb.Owner) { o.State = pb.Owner_STALE }
	unheard := func(o *pb.Owner) { o.State = pb.Owner_DISCONNECTED }
	for name, test := range map[string]struct {
		owners []*pb.Owner
		want   int
	}{
		"two clusters":                          {[]*pb.Owner{owner("a", "n1"), owner("b", "n2")}, 2},
		"two clusters with nodes of one name":   {[]*pb.Owner{owner("a", "n1"), owner("b", "n1", func(o *pb.Owner) { o.Netns = "2" })}, 2},
		"three owners in two clusters":          {[]*pb.Owner{owner("a", "n1"), owner("a", "n2"), owner("b", "n3")}, 3},
		"a node that is disconnected":           {[]*pb.Owner{owner("a", "n1"), owner("b", "n2", unheard)}, 2},
		"one cluster":                           {[]*pb.Owner{owner("a", "n1"), owner("a", "n2")}, 0},
		"one that is shared on purpose":         {[]*pb.Owner{owner("a", "n1"), owner("b", "n2", shared)}, 0},
		"one that only frames show":             {[]*pb.Owner{owner("a", "n1"), owner("b", "n2", external)}, 0},
		"one that no frame has shown for long":  {[]*pb.Owner{owner("a", "n1"), owner("b", "n2", stale)}, 0},
		"two pods with the same of all else":    {[]*pb.Owner{owner("a", "n1"), owner("b", "n1", func(o *pb.Owner) { o.Workload.Uid = "2" })}, 2},
		"one namespace that reports to both":    {[]*pb.Owner{owner("a", "n1"), owner("b", "n1")}, 0},
		"one that reports to both, and another": {[]*pb.Owner{owner("a", "n1"), owner("b", "n1"), owner("b", "n2")}, 2},
	} {
		if got := len(rivals(test.owners)); got != test.want {
			t.Errorf("%s: got %d rivals, want %d", name, got, test.want)
		}
	}
}

func TestALongerPrefixDecidesTheNetwork(t *testing.T) {
	all := networks{
		{Name: "wide", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}},
		{Name: "narrow", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, Clusters: []string{"a", "b"}},
	}
	for text, want := range map[string]string{"10.1.2.3": "narrow", "10.2.2.3": "wide", "fd00::1": "wide", "192.0.2.1": ""} {
		got := ""
		if n := all.of(netip.MustParseAddr(text)); n != nil {
			got = n.Name
		}
		if got != want {
			t.Errorf("got the network %q of %s, want %q", got, text, want)
		}
	}
	if !all[0].has("c") || !all[1].has("a") || all[1].has("c") {
		t.Error("got another answer to which clusters share a network, want all, or those that are named")
	}
}

// A conflict goes through its states as the owners come and go, and as the clusters are heard.
func TestAConflictBetweenClustersHasStates(t *testing.T) {
	n := &Network{Name: "lan"}
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	heardAt := map[string]time.Time{}
	now := begin
	heard := func(name string, after time.Time) bool { return heardAt[name].After(after) }
	var c *contest
	step := func(after time.Duration, want string, owners ...*pb.Owner) {
		t.Helper()
		now = begin.Add(after)
		c = judge(c, n, someAddress, owners, heard, now)
		got := "none"
		if c != nil {
			got = fmt.Sprintf("%s %d %v", c.conflict.GetState(), c.conflict.GetEpisode(), c.conflict.GetClusters())
		}
		if got != want {
			t.Errorf("after %s: got %s, want %s", after, got, want)
		}
	}
	a, b, other := owner("a", "n1"), owner("b", "n2"), owner("c", "n3")
	step(0, "none", a)
	step(time.Second, "SUSPECTED 1 [a b]", a, b)
	heardAt["a"] = begin.Add(20 * time.Second)
	heardAt["b"] = begin.Add(3 * time.Second) // too early to tell
	step(20*time.Second, "SUSPECTED 1 [a b]", a, b)
	heardAt["b"] = begin.Add(7 * time.Second)
	disconnected := owner("b", "n2", func(o *pb.Owner) { o.State = pb.Owner_DISCONNECTED })
	step(21*time.Second, "SUSPECTED 1 [a b]", a, disconnected)
	step(22*time.Second, "CONFIRMED 1 [a b]", a, b)
	same := c
	step(23*time.Second, "CONFIRMED 1 [a b]", a, b)
	if c != same {
		t.Error("got a change although nothing has changed, want none")
	}
	step(24*time.Second, "CONFIRMED 1 [a b c]", a, b, other)
	step(25*time.Second, "CONFIRMED 1 [a b c]", b, other)
	if got := c.conflict.GetSummary(); !strings.Contains(got, "in the clusters b and c,") {
		t.Errorf("got the summary %q, want only the clusters that hold the address now", got)
	}
	step(26*time.Second, "SUSPECTED 1 [a b c]", b, owner("c", "n4")) // fewer than two of before
	step(27*time.Second, "RESOLVED 1 [a b c]", b)
	step(28*time.Second, "RESOLVED 1 [a b c]", b)
	step(29*time.Second, "SUSPECTED 2 [a b]", a, b)
}

func TestTokensOfWatchesAreReadAsTheyWereWritten(t *testing.T) {
	want := api.Positions{"a": time.UnixMicro(5), "b c": time.UnixMicro(1 << 50)}
	got, err := parsePositions(positionsToken(want))
	if err != nil || len(got) != 2 || !got["a"].Equal(want["a"]) || !got["b c"].Equal(want["b c"]) {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
	for _, token := range []string{"x", "f!", positionsToken(want)[:9]} {
		if _, err := parsePositions(token); err == nil {
			t.Errorf("got no error for the token %q, want one", token)
		}
	}
}
