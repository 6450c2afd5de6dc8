package fleet

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Network is a set of addresses that must be unique in several clusters.
type Network struct {
	Name     string
	Prefixes []netip.Prefix
	// Clusters are the names of the clusters that share the network; empty for all.
	Clusters []string
}

func (n *Network) has(cluster string) bool {
	return len(n.Clusters) == 0 || slices.Contains(n.Clusters, cluster)
}

type networks []Network

// of returns the network of an address: that with the longest prefix; nil if there is none.
func (all networks) of(a netip.Addr) (found *Network) {
	bits := -1
	for i := range all {
		for _, p := range all[i].Prefixes {
			if p.Contains(a) && p.Bits() > bits {
				found, bits = &all[i], p.Bits()
			}
		}
	}
	return found
}

const ruleBetween = "assigned-across-clusters"

// settle is how much later than the beginning of a conflict between clusters each of them must have
// published something until it is confirmed. It allows for different clocks.
const settle = 5 * time.Second

// counts reports whether an owner is compared with the owners of other clusters. An owner that only frames
// show is not: it may be an owner of another cluster, or a router that answers for one.
func counts(o *pb.Owner) bool {
	return o.GetExcluded() == "" && o.GetWorkload().GetKind() != pb.Workload_EXTERNAL && (o.GetState() == pb.Owner_LIVE || o.GetState() == pb.Owner_DISCONNECTED)
}

// identity is what makes two owners of different clusters the same: a namespace of one kernel that reports
// to the aggregators of both. Names of nodes, numbers of namespaces and MACs may be equal in two clusters, but
// pods have different UIDs. The journal keeps 12 digits of the IDs of containers.
func identity(o *pb.Owner) string {
	w := o.GetWorkload()
	return strings.Join([]string{o.GetNode(), o.GetNetns(), o.GetInterface(), o.GetMac(), w.GetUid(), w.GetContainerId()[:min(len(w.GetContainerId()), 12)]}, "|")
}

// rivals returns the owners of an address that contradict each other, because they are different and in
// different clusters; none if there are no two.
func rivals(owners []*pb.Owner) []*pb.Owner {
	var all []*pb.Owner
	clusters := make(map[string]bool)
	for _, o := range owners {
		if !counts(o) || slices.ContainsFunc(all, func(other *pb.Owner) bool {
			return other.GetCluster() != o.GetCluster() && identity(other) == identity(o)
		}) {
			continue
		}
		all = append(all, o)
		clusters[o.GetCluster()] = true
	}
	if len(clusters) < 2 {
		return nil
	}
	return all
}

// A contest is a conflict between clusters.
type contest struct {
	network  *Network
	conflict *pb.Conflict
	// since is when the current owners began to exist at the same time, as far as the fleet knows.
	since time.Time
}

func (c *contest) active() bool { return c != nil && c.conflict.GetState() != pb.Conflict_RESOLVED }

// judge returns what a contest becomes; the same one if nothing changes, and nil if there is none. owners
// are the owners of the address in the clusters of the network. heard reports whether a cluster is seen, and
// has published something after a time.
func judge(before *contest, n *Network, a netip.Addr, owners []*pb.Owner, heard func(cluster string, after time.Time) bool, now time.Time) *contest {
	all := rivals(owners)
	if len(all) == 0 {
		if !before.active() {
			return before
		}
		c := proto.CloneOf(before.conflict)
		c.State, c.ResolvedAt = pb.Conflict_RESOLVED, timestamppb.New(now)
		c.Summary = explain.Text("fleet/resolved", "address", a, "clusters", explain.Names(c.GetClusters()), "network", n.Name)
		return &contest{before.network, c, before.since}
	}
	c, since := &pb.Conflict{}, now
	if before.active() {
		c, since = proto.CloneOf(before.conflict), before.since
		left := slices.DeleteFunc(slices.Clone(c.GetOwners()), func(o *pb.Owner) bool {
			return !slices.ContainsFunc(all, func(other *pb.Owner) bool {
				return other.GetCluster() == o.GetCluster() && identity(other) == identity(o)
			})
		})
		if len(left) < 2 { // others took their place
			c.State, c.ConfirmedAt, since = pb.Conflict_SUSPECTED, nil, now
		}
	} else {
		c = &pb.Conflict{
			Id: verdict.ID("", verdict.NetworkScope, n.Name, a), Address: a.String(), Scope: &pb.Scope{Kind: pb.Scope_NETWORK, Name: n.Name},
			Cause: verdict.CauseUnknown, Rule: ruleBetween, State: pb.Conflict_SUSPECTED, DetectedAt: timestamppb.New(now), Episode: 1,
		}
		if before != nil {
			c.Episode = before.conflict.GetEpisode() + 1
		}
	}
	c.Owners = all
	confirmed := true
	var between []string
	for _, o := range all {
		if between = append(between, o.GetCluster()); !slices.Contains(c.Clusters, o.GetCluster()) { // also those that took part before
			c.Clusters = append(c.Clusters, o.GetCluster())
		}
		confirmed = confirmed && o.GetState() == pb.Owner_LIVE && heard(o.GetCluster(), since.Add(settle))
	}
	slices.Sort(c.Clusters)
	slices.Sort(between)
	if confirmed && c.GetState() == pb.Conflict_SUSPECTED {
		c.State, c.ConfirmedAt = pb.Conflict_CONFIRMED, timestamppb.New(now)
	}
	c.Summary = explain.Text("fleet/conflict", "address", a, "clusters", explain.Names(slices.Compact(between)), "network", n.Name)
	if before.active() && proto.Equal(c, before.conflict) {
		return before
	}
	return &contest{n, c, since}
}
