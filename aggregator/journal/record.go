package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"
	"time"

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
	// ID identifies an owner. Conflicts, findings and nodes have their own identifiers.
	ID string
	// One of these is set.
	Owner    *pb.Owner
	Conflict *pb.Conflict
	Finding  *pb.Finding
	Node     *pb.Node
}

// maxTerms is the largest number of terms of one record. A finding may have 1000 addresses.
const maxTerms = 1100

// A record is a change as it is stored.
type record struct {
	kind  pb.Event_Kind
	place place
	// id distinguishes the items of one place. Two items of one place have the same id with a
	// probability of 2^-32.
	id   uint32
	at   stamp
	typ  pb.Watch_Type
	body []byte
	// terms are the terms by which the record is found, besides its place.
	terms []string
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
	var m proto.Message
	switch {
	case c.Owner != nil:
		r.kind, r.id = pb.Event_OWNER, hashID(c.ID)
		a, err := netip.ParseAddr(c.Owner.GetAddress())
		if err != nil {
			return r, fmt.Errorf("record an owner: %w", err)
		}
		r.place = placeOf(a)
		terms.owner(c.Owner)
		m = trimOwner(c.Owner, true)
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
		m = trimConflict(c.Conflict)
	case c.Finding != nil:
		r.kind, r.id = pb.Event_FINDING, hashID(c.Finding.GetId())
		r.place = placeOfFinding(c.Finding)
		terms.finding(c.Finding)
		m = trimFinding(c.Finding)
	case c.Node != nil:
		r.kind, r.id, r.place = pb.Event_NODE, hashID(c.Node.GetName()), placeOfName(c.Node.GetName())
		terms.add(nodeTerm(c.Node.GetName()))
		m = trimNode(c.Node)
	default:
		return r, errors.New("record a change: it has no item")
	}
	r.terms = terms.list
	r.body, err = proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return r, err
}

// placeOfFinding returns the address of a finding, the first address of its prefix, or a hash of its
// identifier.
func placeOfFinding(f *pb.Finding) place {
	if a, err := netip.ParseAddr(f.GetAddress()); err == nil {
		return placeOf(a)
	}
	if p, err := netip.ParsePrefix(f.GetAddress()); err == nil {
		return placeOf(p.Addr())
	}
	return placeOfName(f.GetId())
}

type termSet struct{ list []string }

func (t *termSet) add(term string) {
	if len(t.list) >= maxTerms || strings.ContainsRune(term, 0) {
		return
	}
	if slices.Contains(t.list, term) {
		return
	}
	t.list = append(t.list, term)
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
// while the owner lives, and the sources of its names. The key has the address.
func trimOwner(o *pb.Owner, keyed bool) *pb.Owner {
	out := &pb.Owner{
		Scope: o.GetScope(), Node: o.GetNode(), Interface: o.GetInterface(), HostInterface: o.GetHostInterface(),
		Mac: o.GetMac(), Netns: o.GetNetns(), FirstSeen: o.GetFirstSeen(), State: o.GetState(), AssignedAt: o.GetAssignedAt(),
		Excluded: o.GetExcluded(), Intended: o.GetIntended(), Routed: o.GetRouted(),
	}
	if !keyed {
		out.Address = o.GetAddress()
	}
	if w := o.GetWorkload(); w != nil {
		out.Workload = &pb.Workload{
			Kind: w.GetKind(), Namespace: w.GetNamespace(), Name: w.GetName(), Uid: w.GetUid(), ContainerId: w.GetContainerId(), Source: w.GetSource(),
			Process: w.GetProcess(), VirtualMachine: w.GetVirtualMachine(), Controller: w.GetController(), Phase: w.GetPhase(),
			DeletionTimestamp: w.GetDeletionTimestamp(), Orphaned: w.GetOrphaned(), ProcessEnded: w.GetProcessEnded(),
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

// trimConflict returns a conflict without the steps to take, which would not be safe later.
func trimConflict(c *pb.Conflict) *pb.Conflict {
	out := proto.CloneOf(c)
	out.Remedy, out.Diagnosis = nil, nil
	out.Owners = trimOwners(out.GetOwners())
	return out
}

// trimFinding returns a finding without the steps to take, which would not be safe later.
func trimFinding(f *pb.Finding) *pb.Finding {
	out := proto.CloneOf(f)
	out.Remedy, out.Fixes = nil, nil
	out.Owners = trimOwners(out.GetOwners())
	return out
}

// trimNode returns a node without the values that change all the time.
func trimNode(n *pb.Node) *pb.Node {
	return &pb.Node{
		Name: n.GetName(), State: n.GetState(), Version: n.GetVersion(), Kernel: n.GetKernel(), BootId: n.GetBootId(), Netns: n.GetNetns(),
		Wire: n.GetWire(), Problems: n.GetProblems(), Runtime: n.GetRuntime(), Incomplete: n.GetIncomplete(),
		VipProgram: n.GetVipProgram(), VipProgramEnded: n.GetVipProgramEnded(),
	}
}

// The format of a value: a version, the type of the change with flags, the id, the stamp notBefore if
// its flag is set, and the message.
const (
	valueVersion = 1

	flagCopied    = 0x80 // a copy at the start of a segment
	flagNotBefore = 0x40
	typeMask      = 0x0f

	valueHeader = 1 + 1 + 4
)

func (r *record) value(copied bool) []byte {
	v := make([]byte, 0, valueHeader+8+len(r.body))
	flags := byte(r.typ)
	if copied {
		flags |= flagCopied
	}
	if r.notBefore != 0 {
		flags |= flagNotBefore
	}
	v = append(v, valueVersion, flags)
	v = binary.BigEndian.AppendUint32(v, r.id)
	if r.notBefore != 0 {
		v = binary.BigEndian.AppendUint64(v, uint64(r.notBefore))
	}
	return append(v, r.body...)
}

// A stored is a value as it was read. It is valid as long as the value.
type stored struct {
	typ       pb.Watch_Type
	copied    bool
	id        uint32
	notBefore stamp
	body      []byte
}

var errDamagedRecord = errors.New("a record is damaged")

func parseValue(v []byte) (s stored, err error) {
	if len(v) < valueHeader {
		return s, errDamagedRecord
	}
	if v[0] != valueVersion {
		return s, fmt.Errorf("a record has version %d, but the newest supported version is %d", v[0], valueVersion)
	}
	s = stored{typ: pb.Watch_Type(v[1] & typeMask), copied: v[1]&flagCopied != 0, id: binary.BigEndian.Uint32(v[2:]), body: v[valueHeader:]}
	if v[1]&flagNotBefore != 0 {
		if len(s.body) < 8 {
			return s, errDamagedRecord
		}
		s.notBefore, s.body = stamp(binary.BigEndian.Uint64(s.body)), s.body[8:]
	}
	return s, nil
}

// event returns the event of a stored record.
func (s *stored) event(kind pb.Event_Kind, p place, at stamp) (*pb.Event, error) {
	e := &pb.Event{Kind: kind, Type: s.typ, Time: timeOf(at), NotBefore: timeOf(s.notBefore)}
	var m proto.Message
	switch kind {
	case pb.Event_OWNER:
		e.Owner = new(pb.Owner)
		m = e.Owner
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
	if err := proto.Unmarshal(s.body, m); err != nil {
		return nil, errors.Join(errDamagedRecord, err)
	}
	if e.Owner != nil {
		e.Owner.Address = p.address().String()
	}
	return e, nil
}

// likeness returns a hash of the state of an item that is the same if nothing but times has changed:
// after a restart, items have new times.
func likeness(seed maphash.Seed, kind pb.Event_Kind, body []byte) (uint64, error) {
	e, err := (&stored{body: body}).event(kind, place{}, 0)
	if err != nil {
		return 0, err
	}
	var m proto.Message = e.GetNode()
	switch kind {
	case pb.Event_OWNER:
		e.Owner.FirstSeen = nil
		m = e.GetOwner()
	case pb.Event_CONFLICT:
		c := e.GetConflict()
		c.DetectedAt, c.ConfirmedAt = nil, nil
		for _, o := range c.GetOwners() {
			o.FirstSeen = nil
		}
		m = c
	case pb.Event_FINDING:
		e.Finding.DetectedAt = nil
		for _, o := range e.GetFinding().GetOwners() {
			o.FirstSeen = nil
		}
		m = e.GetFinding()
	default:
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return maphash.Bytes(seed, raw), err
}

func timeOf(at stamp) *timestamppb.Timestamp {
	if at == 0 {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: at / 1e6, Nanos: int32(at % 1e6 * 1e3)}
}
