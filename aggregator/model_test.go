package aggregator

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// ifaceKey is the namespace and the index of an interface.
type ifaceKey struct{ namespace, index uint32 }

// model is an agent's table: the records by key.
type model struct {
	namespaces map[uint32]*pb.NamespaceRecord
	links      map[string]*pb.LinkRecord
	interfaces map[ifaceKey]*pb.InterfaceRecord
	claims     map[string]*pb.ClaimRecord
}

func newModel() *model {
	return &model{
		map[uint32]*pb.NamespaceRecord{}, map[string]*pb.LinkRecord{}, map[ifaceKey]*pb.InterfaceRecord{}, map[string]*pb.ClaimRecord{},
	}
}

func (m *model) message() *pb.ReportRequest {
	out := &pb.ReportRequest{}
	for _, r := range m.namespaces {
		out.Namespaces = append(out.Namespaces, r)
	}
	for _, r := range m.links {
		out.Links = append(out.Links, r)
	}
	for _, r := range m.interfaces {
		out.Interfaces = append(out.Interfaces, r)
	}
	for _, r := range m.claims {
		out.Claims = append(out.Claims, r)
	}
	return proto.CloneOf(out)
}

func pick[T any](r *rand.Rand, items ...T) T { return items[r.IntN(len(items))] }

func claimName(c *pb.ClaimRecord) string {
	return fmt.Sprintf("%x %d %d %d %x", c.GetAddress(), c.GetKind(), c.GetNamespace(), c.GetIndex(), c.GetMac())
}

// change makes a random change of the table and returns the message that reports it.
func (m *model) change(r *rand.Rand) *pb.ReportRequest {
	record := pick[uint32](r, 1, 2, 3, 4)
	switch r.IntN(8) {
	case 0:
		ns := &pb.NamespaceRecord{Id: record, Netns: strconv.Itoa(4000 + int(record)), Workload: &pb.Workload{
			Kind: pb.Workload_POD, Namespace: "default", Name: pick(r, "a", "b", "c"), Source: "cni-result",
		}}
		if record > 1 && r.IntN(3) == 0 {
			m.endNamespace(record)
			return &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: record, Gone: true}}}
		}
		m.namespaces[record] = ns
		return &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{ns}}
	case 1:
		l := &pb.LinkRecord{Name: pick(r, "l1", "l2", "l3"), Kind: pick(r, pb.LinkRecord_BRIDGE, pb.LinkRecord_POINT_TO_POINT), Routed: r.IntN(2) == 0}
		if r.IntN(4) == 0 {
			delete(m.links, l.GetName())
			return &pb.ReportRequest{Links: []*pb.LinkRecord{{Name: l.GetName(), Gone: true}}}
		}
		m.links[l.GetName()] = l
		return &pb.ReportRequest{Links: []*pb.LinkRecord{l}}
	case 2, 3, 4:
		if m.namespaces[record] == nil {
			return nil
		}
		i := &pb.InterfaceRecord{
			Namespace: record, Index: pick[uint32](r, 1, 2), Name: "eth0", Mac: records.MAC(pick[uint32](r, 1, 2, 3)),
			Attachment: pb.InterfaceRecord_Attachment(1 + r.IntN(6)), Link: pick(r, "l1", "l2", "l3", ""),
		}
		if record == 1 {
			i.Attachment, i.Uplink, i.PeerNamespace = pb.InterfaceRecord_OWN, r.IntN(3) == 0, pick[uint32](r, 0, 2, 3, 4)
		}
		key := ifaceKey{i.GetNamespace(), i.GetIndex()}
		if r.IntN(5) == 0 {
			m.endInterface(key)
			return &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: key.namespace, Index: key.index, Gone: true}}}
		}
		m.interfaces[key] = i
		return &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{i}}
	default:
		c := assigned(record, pick(r, "10.0.0.1", "10.0.0.2"))
		c.Index = pick[uint32](r, 1, 2)
		if record == 1 && r.IntN(3) > 0 {
			c.Kind, c.Mac, c.Link = pb.Evidence_ANSWERED, records.MAC(pick[uint32](r, 1, 2, 3, 9)), pick(r, "l1", "l2", "l3")
		}
		if m.interfaces[ifaceKey{record, c.GetIndex()}] == nil {
			return nil
		}
		if r.IntN(4) == 0 {
			delete(m.claims, claimName(c))
			return gone(c)
		}
		m.claims[claimName(c)] = c
		return &pb.ReportRequest{Claims: []*pb.ClaimRecord{c}}
	}
}

func (m *model) endNamespace(record uint32) {
	delete(m.namespaces, record)
	for key := range m.interfaces {
		if key.namespace == record {
			m.endInterface(key)
		}
	}
}

func (m *model) endInterface(key ifaceKey) {
	delete(m.interfaces, key)
	for name, c := range m.claims {
		if c.GetNamespace() == key.namespace && c.GetIndex() == key.index {
			delete(m.claims, name)
		}
	}
}

// After any changes in any order, the state is that of a snapshot of the final table. So no change
// is missed, and no index is wrong.
func TestChangesConvergeToASnapshot(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		m := newModel()
		begin := func() (*core, *source) {
			s := newTestCore(t)
			session := s.begin(t, hello("n1", 1))
			session.must(t, m.last())
			return s, session
		}
		changed, session := begin()
		for range 150 {
			if c := m.change(r); c != nil {
				session.must(t, proto.CloneOf(c))
			}
		}
		// The aggregator ends sightings when their owner ends on its own node, but an agent keeps
		// them in its table. Report them again.
		for _, c := range m.claims {
			if !changed.hasClaim(c) {
				session.must(t, &pb.ReportRequest{Claims: []*pb.ClaimRecord{proto.CloneOf(c)}})
			}
		}

		fresh, _ := begin()
		if got, want := changed.summary(t), fresh.summary(t); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: got\n%v\nwant\n%v", seed, got, want)
		}
	}
}

// hasClaim reports whether a claim is known.
func (c *core) hasClaim(rec *pb.ClaimRecord) bool {
	c.facts.RLock()
	defer c.facts.RUnlock()
	a, _ := netip.AddrFromSlice(rec.GetAddress())
	return slices.ContainsFunc(c.facts.Builder().Case(index.AddressOf(a), false).Claims, func(h *verdict.Claim) bool {
		return claimName(rec) == fmt.Sprintf("%x %d %d %d %x", a.AsSlice(), h.Kind, h.Interface.Namespace.Record, h.Interface.Index, string(h.MAC))
	})
}

// summary describes the owners, without times.
func (c *core) summary(t *testing.T) (lines []string) {
	t.Helper()
	for _, o := range c.pages(t, &pb.ListOwnersRequest{}, 1000) {
		line := fmt.Sprint(o.GetAddress(), o.GetNode(), o.GetInterface(), o.GetMac(), o.GetNetns(), o.GetWorkload(), o.GetScope(), o.GetState(), o.GetExcluded())
		for _, e := range o.GetEvidence() {
			line += fmt.Sprint(" ", e.GetKind(), e.GetMac(), e.GetWitness())
		}
		lines = append(lines, line)
	}
	return append(lines, fmt.Sprint(c.shards.Counts()))
}

// last returns the message that ends a snapshot and contains the whole table.
func (m *model) last() *pb.ReportRequest {
	out := m.message()
	out.SnapshotEnd = true
	return out
}
