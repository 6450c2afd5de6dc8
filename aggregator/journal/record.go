package journal

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Change is a change of one item, or an item of the current state.
type Change struct {
	// At is the time of the change.
	At time.Time
	// Type is ADDED, UPDATED or REMOVED.
	Type pb.Watch_Type
	// ID identifies an owner. Conflicts, findings and nodes have their own identifiers. Without it, Item
	// distinguishes the owners of one address, as in the journal that the change is from.
	ID   string
	Item uint32
	// Revision is the revision after the change, for Mark; 0 for none.
	Revision uint64
	// Note is written together with the change, for Resume; nil for none.
	Note []byte
	// One of these is set.
	Owner    *pb.Owner
	Conflict *pb.Conflict
	Finding  *pb.Finding
	Node     *pb.Node
}

// maxTerms is the largest number of terms of one record. A finding may have 1000 addresses.
const maxTerms = 1100

// A record is a change before it is stored.
type record struct {
	subject
	// id distinguishes the items of one place. Two items of one place have the same id with a
	// probability of 2^-32.
	id  uint32
	at  stamp
	typ pb.Watch_Type
	// item is nil if the item is REMOVED: its last record has it.
	item proto.Message
	// terms are the terms by which the record is found, besides its place.
	terms []term
	// notBefore is set if the change happened in a gap.
	notBefore stamp
}

func hashID(id string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // a hash.Hash never fails
	return h.Sum32()
}

// newRecord returns the record of a change. It neither keeps nor changes the messages of the change.
func newRecord(c *Change) (r record, err error) {
	r = record{at: c.At.UnixMicro(), typ: c.Type}
	terms := termSet{}
	switch {
	case c.Owner != nil:
		if r.kind, r.id = pb.Event_OWNER, c.Item; c.ID != "" {
			r.id = hashID(c.ID)
		}
		a, err := netip.ParseAddr(c.Owner.GetAddress())
		if err != nil {
			return r, fmt.Errorf("record an owner: %w", err)
		}
		r.place = placeOf(a)
		terms.owner(c.Owner)
		r.item = trimOwner(c.Owner, true)
	case c.Conflict != nil:
		r.kind, r.id = pb.Event_CONFLICT, hashID(c.Conflict.GetId())
		a, err := netip.ParseAddr(c.Conflict.GetAddress())
		if err != nil {
			return r, fmt.Errorf("record a conflict: %w", err)
		}
		r.place = placeOf(a)
		for _, o := range c.Conflict.GetOwners() {
			terms.owner(o)
		}
		// Without the steps to take, which would not be safe later.
		trimmed := proto.CloneOf(c.Conflict)
		trimmed.Remedy, trimmed.Diagnosis, trimmed.Owners = nil, nil, trimOwners(trimmed.GetOwners())
		r.item = trimmed
	case c.Finding != nil:
		r.kind, r.id = pb.Event_FINDING, hashID(c.Finding.GetId())
		// The address of the finding, the first address of its prefix, or a hash of its identifier.
		if a, err := netip.ParseAddr(c.Finding.GetAddress()); err == nil {
			r.place = placeOf(a)
		} else if p, err := netip.ParsePrefix(c.Finding.GetAddress()); err == nil {
			r.place = placeOf(p.Addr())
		} else {
			r.place = placeOfName(c.Finding.GetId())
		}
		terms.finding(c.Finding)
		trimmed := proto.CloneOf(c.Finding)
		trimmed.Remedy, trimmed.Fixes, trimmed.Owners = nil, nil, trimOwners(trimmed.GetOwners())
		r.item = trimmed
	case c.Node != nil:
		r.kind, r.id, r.place = pb.Event_NODE, hashID(c.Node.GetName()), placeOfName(c.Node.GetName())
		terms.add(nodeTerm(c.Node.GetName()))
		// Without the values that change all the time.
		n := c.Node
		r.item = proto.CloneOf(&pb.Node{
			Name: n.GetName(), State: n.GetState(), Version: n.GetVersion(), Kernel: n.GetKernel(), BootId: n.GetBootId(), Netns: n.GetNetns(),
			Wire: n.GetWire(), Problems: n.GetProblems(), Runtime: n.GetRuntime(), Incomplete: n.GetIncomplete(),
			VipProgram: n.GetVipProgram(), VipProgramEnded: n.GetVipProgramEnded(),
		})
	default:
		return r, errors.New("record a change: it has no item")
	}
	r.terms = terms.list
	if r.typ == pb.Watch_REMOVED {
		r.item = nil
	}
	return r, nil
}

type termSet struct{ list []term }

func (t *termSet) add(one term) {
	if len(t.list) < maxTerms && !slices.Contains(t.list, one) {
		t.list = append(t.list, one)
	}
}

func (t *termSet) owner(o *pb.Owner) {
	if w := o.GetWorkload(); w.GetName() != "" {
		t.add(podTerm(w.GetNamespace(), w.GetName()))
	}
	if o.GetMac() != "" {
		t.add(macTerm(o.GetMac()))
	}
	t.add(nodeTerm(o.GetNode()))
}

func (t *termSet) finding(f *pb.Finding) {
	for _, o := range f.GetOwners() {
		t.owner(o)
	}
	for _, al := range f.GetAllocations() {
		if al.GetPod() != "" {
			t.add(podTerm(al.GetNamespace(), al.GetPod()))
		}
	}
	for _, n := range f.GetNodes() {
		t.add(nodeTerm(n))
	}
	for _, text := range f.GetAddresses() {
		if a, err := netip.ParseAddr(text); err == nil {
			t.add(addressTerm(a))
		}
	}
}

// trimOwner returns an owner without the parts that are not recorded: its evidence, which has no end
// while the owner lives, and the sources of its names. An owner that is an item of its own has no
// address, because its key has it, times in milliseconds, and the usual short form of a container's ID.
func trimOwner(o *pb.Owner, keyed bool) *pb.Owner {
	out := &pb.Owner{
		Scope: o.GetScope(), Node: o.GetNode(), Interface: o.GetInterface(), HostInterface: o.GetHostInterface(),
		Mac: o.GetMac(), Netns: o.GetNetns(), FirstSeen: o.GetFirstSeen(), State: o.GetState(), AssignedAt: o.GetAssignedAt(),
		Excluded: o.GetExcluded(), Intended: o.GetIntended(), Routed: o.GetRouted(), Cluster: o.GetCluster(),
	}
	w := o.GetWorkload()
	if w != nil {
		out.Workload = &pb.Workload{
			Kind: w.GetKind(), Namespace: w.GetNamespace(), Name: w.GetName(), Uid: w.GetUid(), ContainerId: w.GetContainerId(), Source: w.GetSource(),
			Process: w.GetProcess(), VirtualMachine: w.GetVirtualMachine(), Controller: w.GetController(), Phase: w.GetPhase(),
			DeletionTimestamp: w.GetDeletionTimestamp(), Orphaned: w.GetOrphaned(), ProcessEnded: w.GetProcessEnded(),
			Idle: w.GetIdle(), MayForward: w.GetMayForward(), VipProgram: w.GetVipProgram(), VipProgramEnded: w.GetVipProgramEnded(),
		}
	}
	if !keyed {
		out.Address = o.GetAddress()
		return out
	}
	for _, t := range []**timestamppb.Timestamp{&out.FirstSeen, &out.AssignedAt} {
		if *t != nil {
			*t = timestamppb.New((*t).AsTime().Truncate(time.Millisecond))
		}
	}
	if id := w.GetContainerId(); len(id) > containerDigits {
		if _, err := hex.DecodeString(id[:containerDigits]); err == nil {
			out.Workload.ContainerId = id[:containerDigits]
		}
	}
	return out
}

func trimOwners(owners []*pb.Owner) []*pb.Owner {
	out := make([]*pb.Owner, len(owners))
	for i, o := range owners {
		out[i] = trimOwner(o, false)
	}
	return out
}

// The format of a record: the id, the item (unless the change is that it is REMOVED), and in front of
// them, if the change happened in a gap, the stamp notBefore and the type: the type in the key is 0.

var marshal = proto.MarshalOptions{Deterministic: true}

// value returns what is stored of a record besides its key. It changes the item.
func (r *record) value() ([]byte, error) {
	v := make([]byte, 0, 128)
	if r.notBefore != 0 {
		v = append(binary.BigEndian.AppendUint64(v, uint64(r.notBefore)), byte(r.typ))
	}
	v = binary.BigEndian.AppendUint32(v, r.id)
	switch m := r.item.(type) {
	case nil:
		return v, nil
	case *pb.Owner:
		return appendOwner(v, m, r.at)
	default:
		return marshal.MarshalAppend(v, m)
	}
}

// A stored is a record as it was read. It is valid as long as the value.
type stored struct {
	typ       pb.Watch_Type
	id        uint32
	notBefore stamp
	// item is the item; empty if it is REMOVED. at is that of the record with the item.
	item []byte
	at   stamp
}

func parseItem(seg segment, it *pebble.Iterator) (p []byte, s stored, err error) {
	p, typ, at, v, err := parseItemKey(seg, it.Key())
	if err == nil && len(v) == 0 {
		v, err = it.ValueAndErr()
	}
	if err != nil {
		return nil, s, err
	}
	s, err = parseRecord(typ, v)
	s.at = at
	return p, s, err
}

func parseRecord(typ pb.Watch_Type, v []byte) (s stored, err error) {
	s.typ = typ
	if typ == 0 {
		if len(v) < 9 {
			return s, errDamagedRecord
		}
		s.notBefore, s.typ, v = stamp(binary.BigEndian.Uint64(v)), pb.Watch_Type(v[8]), v[9:]
	}
	if len(v) < 4 {
		return s, errDamagedRecord
	}
	s.id, s.item = binary.BigEndian.Uint32(v), v[4:]
	return s, nil
}

func (s *store) event(one *stored, about subject, at stamp) (*pb.Event, error) {
	e := &pb.Event{Kind: about.kind, Type: one.typ, Time: timeOf(at), NotBefore: timeOf(one.notBefore)}
	var m proto.Message
	switch about.kind {
	case pb.Event_OWNER:
		o, err := parseOwner(one.item, one.at)
		if err != nil {
			return nil, err
		}
		e.Owner = o
		e.Owner.Address = about.place.address().String()
		if one.typ == pb.Watch_REMOVED {
			e.Owner.State = pb.Owner_GONE
		}
		return e, nil
	case pb.Event_CONFLICT:
		e.Conflict = new(pb.Conflict)
		m = e.Conflict
	case pb.Event_FINDING:
		e.Finding = new(pb.Finding)
		m = e.Finding
	case pb.Event_NODE:
		e.Node = new(pb.Node)
		m = e.Node
	default:
		return nil, errDamagedRecord
	}
	if err := proto.Unmarshal(one.item, m); err != nil {
		return nil, errors.Join(errDamagedRecord, err)
	}
	return e, nil
}

// change returns the change of an event. Its time is not set.
func change(e *pb.Event) *Change {
	return &Change{Type: e.GetType(), Owner: e.GetOwner(), Conflict: e.GetConflict(), Finding: e.GetFinding(), Node: e.GetNode()}
}

// likeness returns a hash of the state of an item that is the same if nothing but times has changed:
// after a restart, items have new times. It does not change the item.
func likeness(seed maphash.Seed, item proto.Message) (uint64, error) {
	switch m := item.(type) {
	case *pb.Owner:
		defer func(first, assigned *timestamppb.Timestamp) { m.FirstSeen, m.AssignedAt = first, assigned }(m.GetFirstSeen(), m.GetAssignedAt())
		forgetTimes(m)
	case *pb.Conflict:
		m = proto.CloneOf(m)
		m.DetectedAt, m.ConfirmedAt = nil, nil
		forgetTimes(m.GetOwners()...)
		item = m
	case *pb.Finding:
		m = proto.CloneOf(m)
		m.DetectedAt = nil
		forgetTimes(m.GetOwners()...)
		item = m
	}
	raw, err := marshal.Marshal(item)
	return maphash.Bytes(seed, raw), err
}

// forgetTimes removes the times of owners, except that an address was assigned at some time: an agent
// computes the time from the age of the address, and may get another one after its restart.
func forgetTimes(owners ...*pb.Owner) {
	for _, o := range owners {
		o.FirstSeen = nil
		if o.AssignedAt != nil {
			o.AssignedAt = &timestamppb.Timestamp{}
		}
	}
}

// timeOf returns the time of a stamp; nil for 0.
func timeOf(at stamp) *timestamppb.Timestamp {
	if at == 0 {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: at / 1e6, Nanos: int32(at % 1e6 * 1e3)}
}
