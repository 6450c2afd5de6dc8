package journal

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unique"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// An owner is stored in three parts: two words (its node, and its shape: a set of identifiers and a
// message with the fields that many owners have in common), the identifiers of that set in binary, and
// a message with the other fields. Most owners have no other fields.

// An identifier is a field that nearly every owner has, with another value. Its position in the set is
// its position in the record. Identifiers that have no compact form are among the other fields.
const (
	hasUID = 1 << iota
	hasContainer
	hasMAC
	// hasDerivedMAC: the MAC is 0a:58 and the IPv4 address, as several CNI plugins make it.
	hasDerivedMAC
	hasNetns
	hasFirstSeen
	hasAssignedAt
	// hasName: the rest of the workload's name; what precedes it is in the shape.
	hasName
	// hasPackedName: the same, in 16 bits for three characters.
	hasPackedName
	// afterController: the name of the controller precedes the rest of the name.
	afterController

	// tailShift is the position of the number of hexadecimal digits at the end of the host interface.
	tailShift = 12

	shapeHeader = 2
)

const (
	// containerDigits is the number of digits of a container's ID that are recorded.
	containerDigits = 12
	// firstNetns is the inode of the first network namespace (PROC_DYNAMIC_FIRST in the kernel).
	firstNetns = 0xf0000000
	// nameCharacters can be in the names of pods.
	nameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-."
)

// appendOwner appends an owner, which it changes. number returns the number of a word, or false if it
// is not shared.
func appendOwner(v []byte, o *pb.Owner, p place, at stamp, number func([]byte) (uint32, bool, error)) ([]byte, error) {
	set := uint16(0)
	var ids []byte
	w := o.GetWorkload()
	if w == nil {
		w = &pb.Workload{}
	}
	if id, ok := uidBytes(w.GetUid()); ok {
		set |= hasUID
		ids = append(ids, id...)
		w.Uid = ""
	}
	if id, err := hex.DecodeString(w.GetContainerId()); err == nil && len(id) == containerDigits/2 && hex.EncodeToString(id) == w.GetContainerId() {
		set |= hasContainer
		ids = append(ids, id...)
		w.ContainerId = ""
	}
	switch mac, err := net.ParseMAC(o.GetMac()); {
	case err != nil || len(mac) != 6 || mac.String() != o.GetMac():
	case o.GetMac() == derivedMAC(p):
		set |= hasDerivedMAC
		o.Mac = ""
	default:
		set |= hasMAC
		ids = append(ids, mac...)
		o.Mac = ""
	}
	if n, err := strconv.ParseUint(o.GetNetns(), 10, 62); err == nil && strconv.FormatUint(n, 10) == o.GetNetns() {
		set |= hasNetns
		ids = binary.AppendVarint(ids, int64(n)-firstNetns)
		o.Netns = ""
	}
	if o.FirstSeen != nil {
		set |= hasFirstSeen
		ids = binary.AppendVarint(ids, at/1e3-o.FirstSeen.AsTime().UnixMilli())
		o.FirstSeen = nil
	}
	if o.AssignedAt != nil {
		set |= hasAssignedAt
		ids = binary.AppendVarint(ids, at/1e3-o.AssignedAt.AsTime().UnixMilli())
		o.AssignedAt = nil
	}
	if name := w.GetName(); name != "" && len(name) < 256 {
		if rest, ok := strings.CutPrefix(name, w.GetController().GetName()); ok && rest != name {
			set |= afterController
			name = rest
		}
		ids = append(ids, byte(len(name)))
		if packed, ok := packName(name); ok {
			set |= hasPackedName
			ids = append(ids, packed...)
		} else {
			set |= hasName
			ids = append(ids, name...)
		}
		w.Name = ""
	}
	if tail := hexTail(o.GetHostInterface()); tail != "" {
		set |= uint16(len(tail)) << tailShift
		raw, err := hex.DecodeString(tail + "0"[:len(tail)%2])
		if err != nil {
			return nil, err
		}
		ids = append(ids, raw...)
		o.HostInterface = strings.TrimSuffix(o.GetHostInterface(), tail)
	}

	shape := &pb.Owner{
		Scope: o.GetScope(), Interface: o.GetInterface(), HostInterface: o.GetHostInterface(), State: o.GetState(), Excluded: o.GetExcluded(), Routed: o.GetRouted(),
	}
	node := o.GetNode()
	o.Scope, o.Node, o.Interface, o.HostInterface, o.State, o.Excluded, o.Routed = nil, "", "", "", 0, "", false
	if o.GetWorkload() != nil {
		shape.Workload = &pb.Workload{
			Kind: w.GetKind(), Namespace: w.GetNamespace(), Source: w.GetSource(), Controller: w.GetController(), Phase: w.GetPhase(),
			Orphaned: w.GetOrphaned(), ProcessEnded: w.GetProcessEnded(),
		}
		w.Kind, w.Namespace, w.Source, w.Controller, w.Phase, w.Orphaned, w.ProcessEnded = 0, "", "", nil, "", false, false
		if proto.Size(w) == 0 {
			o.Workload = nil
		}
	}
	text, err := marshal.MarshalAppend(binary.BigEndian.AppendUint16(nil, set), shape)
	if err != nil {
		return nil, err
	}
	for _, word := range [][]byte{[]byte(node), text} {
		n, ok, err := number(word)
		if err != nil {
			return nil, err
		}
		v = binary.AppendUvarint(v, uint64(n))
		if !ok {
			v = append(binary.AppendUvarint(v, uint64(len(word))), word...)
		}
	}
	return marshal.MarshalAppend(append(v, ids...), o)
}

// A shape is what many owners have in common: the set of their identifiers, and some fields. It is small,
// because a cluster has about as many shapes as Deployments. Owners share its messages, which nobody changes.
type shape struct {
	set                                                      uint16
	state                                                    pb.Owner_State
	kind                                                     pb.Workload_Kind
	hasWorkload, routed, orphaned, processEnded              bool
	scope                                                    *pb.Scope
	controller                                               *pb.Controller
	iface, hostInterface, excluded, namespace, source, phase string
}

func parseShape(text []byte) (*shape, error) {
	if len(text) < shapeHeader {
		return nil, errDamagedRecord
	}
	o := &pb.Owner{}
	if err := proto.Unmarshal(text[shapeHeader:], o); err != nil {
		return nil, errors.Join(errDamagedRecord, err)
	}
	w, one := o.GetWorkload(), func(text string) string { return unique.Make(text).Value() }
	return &shape{
		set: binary.BigEndian.Uint16(text), state: o.GetState(), kind: w.GetKind(),
		hasWorkload: w != nil, routed: o.GetRouted(), orphaned: w.GetOrphaned(), processEnded: w.GetProcessEnded(),
		scope: o.GetScope(), controller: w.GetController(),
		iface: one(o.GetInterface()), hostInterface: one(o.GetHostInterface()), excluded: one(o.GetExcluded()),
		namespace: one(w.GetNamespace()), source: one(w.GetSource()), phase: one(w.GetPhase()),
	}, nil
}

// A parsed is an owner with its messages, which are allocated at once.
type parsed struct {
	owner                 pb.Owner
	workload              pb.Workload
	firstSeen, assignedAt timestamppb.Timestamp
}

// owner returns an owner with the fields of the shape, and its workload, which it has only if the shape has
// one.
func (s *shape) owner() *parsed {
	out := &parsed{}
	o, w := &out.owner, &out.workload
	o.Scope, o.Interface, o.HostInterface, o.State, o.Excluded, o.Routed = s.scope, s.iface, s.hostInterface, s.state, s.excluded, s.routed
	if s.hasWorkload {
		o.Workload = w
	}
	w.Kind, w.Namespace, w.Source, w.Controller, w.Phase, w.Orphaned, w.ProcessEnded = s.kind, s.namespace, s.source, s.controller, s.phase, s.orphaned, s.processEnded
	return out
}

// A lexicon returns the words of a segment by their numbers.
type lexicon interface {
	word(number uint32) (string, error)
	shape(number uint32) (*shape, error)
}

// texts are fields that are allocated at once.
type texts struct {
	all    []byte
	fields [6]*string
	ends   [6]int
	n      int
}

// end notes that the text since the last end is that of a field.
func (t *texts) end(field *string) {
	t.fields[t.n], t.ends[t.n] = field, len(t.all)
	t.n++
}

// set sets the fields.
func (t *texts) set() {
	all, start := string(t.all), 0
	for i, field := range t.fields[:t.n] {
		*field = all[start:t.ends[i]]
		start = t.ends[i]
	}
}

// parseOwner parses an owner.
func parseOwner(v []byte, p place, at stamp, words lexicon) (*pb.Owner, error) {
	r := &reader{rest: v}
	text, number, err := r.word()
	if err != nil {
		return nil, err
	}
	node := ""
	if number != 0 {
		node, err = words.word(number)
	} else {
		node = string(text)
	}
	if err != nil {
		return nil, err
	}
	if text, number, err = r.word(); err != nil {
		return nil, err
	}
	var like *shape
	if number != 0 {
		like, err = words.shape(number)
	} else {
		like, err = parseShape(text)
	}
	if err != nil {
		return nil, err
	}
	set, out := like.set, like.owner()
	o, w := &out.owner, &out.workload
	o.Node = node
	var room [256]byte
	t := texts{all: room[:0]}
	if set&hasUID != 0 {
		t.all = appendUID(t.all, r.bytes(16))
		t.end(&w.Uid)
	}
	if set&hasContainer != 0 {
		t.all = hex.AppendEncode(t.all, r.bytes(containerDigits/2))
		t.end(&w.ContainerId)
	}
	if set&hasMAC != 0 {
		t.all = appendMAC(t.all, r.bytes(6))
		t.end(&o.Mac)
	} else if set&hasDerivedMAC != 0 {
		t.all = appendDerivedMAC(t.all, p)
		t.end(&o.Mac)
	}
	if set&hasNetns != 0 {
		t.all = strconv.AppendUint(t.all, uint64(firstNetns+r.varint()), 10)
		t.end(&o.Netns)
	}
	if set&hasFirstSeen != 0 {
		o.FirstSeen = &out.firstSeen
		setMillis(o.FirstSeen, at/1e3-r.varint())
	}
	if set&hasAssignedAt != 0 {
		o.AssignedAt = &out.assignedAt
		setMillis(o.AssignedAt, at/1e3-r.varint())
	}
	if set&(hasName|hasPackedName) != 0 {
		if set&afterController != 0 {
			t.all = append(t.all, w.GetController().GetName()...)
		}
		n := int(r.byte())
		if set&hasPackedName != 0 {
			t.all = appendUnpacked(t.all, r.bytes(packedSize(n)), n)
		} else {
			t.all = append(t.all, r.bytes(n)...)
		}
		t.end(&w.Name)
	}
	if n := int(set >> tailShift); n > 0 {
		t.all = append(t.all, o.GetHostInterface()...)
		t.all = hex.AppendEncode(t.all, r.bytes((n+1)/2))
		t.all = t.all[:len(t.all)-n%2]
		t.end(&o.HostInterface)
	}
	if r.failed {
		return nil, errDamagedRecord
	}
	t.set()
	if len(r.rest) > 0 {
		if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(r.rest, o); err != nil {
			return nil, errors.Join(errDamagedRecord, err)
		}
	}
	return o, nil
}

// setMillis sets a time to a number of milliseconds since 1970.
func setMillis(t *timestamppb.Timestamp, ms int64) {
	at := time.UnixMilli(ms)
	t.Seconds, t.Nanos = at.Unix(), int32(at.Nanosecond())
}

// A reader reads the parts of a record. After an error, it returns zeros.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) bytes(n int) []byte {
	if n > len(r.rest) {
		r.failed = true
		return make([]byte, n)
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) byte() byte { return r.bytes(1)[0] }

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.failed = true
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) uvarint(limit int) (int, error) {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || v > uint64(limit) {
		return 0, errDamagedRecord
	}
	r.rest = r.rest[n:]
	return int(v), nil
}

// word reads the number of a word, or the word itself, whose number is 0.
func (r *reader) word() (text []byte, number uint32, err error) {
	n, err := r.uvarint(1<<32 - 1)
	if err != nil || n != 0 {
		return nil, uint32(n), err
	}
	if n, err = r.uvarint(len(r.rest)); err != nil || n > len(r.rest) {
		return nil, 0, errDamagedRecord
	}
	return r.bytes(n), 0, nil
}

// uidBytes returns the bytes of a UID in its usual form.
func uidBytes(text string) (id []byte, ok bool) {
	if len(text) != 36 {
		return nil, false
	}
	id, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	return id, err == nil && len(id) == 16 && string(appendUID(nil, id)) == text
}

func appendUID(text, id []byte) []byte {
	for _, part := range [][]byte{id[:4], id[4:6], id[6:8], id[8:10]} {
		text = append(hex.AppendEncode(text, part), '-')
	}
	return hex.AppendEncode(text, id[10:])
}

func appendMAC(text, mac []byte) []byte {
	text = hex.AppendEncode(text, mac[:1])
	for i := range mac[1:] {
		text = hex.AppendEncode(append(text, ':'), mac[1+i:2+i])
	}
	return text
}

// appendDerivedMAC appends the MAC that is made of an IPv4 address.
func appendDerivedMAC(text []byte, p place) []byte {
	if p[0] != tag4 {
		return text
	}
	return appendMAC(text, []byte("\x0a\x58"+p[1:]))
}

// derivedMAC returns the MAC that is made of an IPv4 address.
func derivedMAC(p place) string { return string(appendDerivedMAC(nil, p)) }

// derivedFrom returns the IPv4 address that a MAC is made of.
func derivedFrom(mac string) (a netip.Addr, ok bool) {
	raw, err := net.ParseMAC(mac)
	if err != nil || len(raw) != 6 || raw[0] != 0x0a || raw[1] != 0x58 {
		return a, false
	}
	return netip.AddrFromSlice(raw[2:])
}

// hexTail returns the hexadecimal digits at the end of the name of an interface.
func hexTail(name string) string {
	tail := name[len(strings.TrimRight(name, "0123456789abcdef")):]
	if len(tail) < 6 || len(tail) > 15 {
		return "" // a number that many interfaces have, or not the name of an interface
	}
	return tail
}

// packedSize returns the number of bytes of a packed name with n characters.
func packedSize(n int) int { return n/3*2 + n%3 }

// packName packs three characters into 16 bits.
func packName(name string) (packed []byte, ok bool) {
	for len(name) > 0 {
		n := min(3, len(name))
		v := 0
		for i := range n {
			digit := strings.IndexByte(nameCharacters, name[i])
			if digit < 0 {
				return nil, false
			}
			v = v*len(nameCharacters) + digit
		}
		if n == 1 {
			packed = append(packed, byte(v))
		} else {
			packed = append(packed, byte(v>>8), byte(v))
		}
		name = name[n:]
	}
	return packed, true
}

// appendUnpacked appends the name with n characters that packName has packed.
func appendUnpacked(text, packed []byte, n int) []byte {
	for ; n > 0; n -= 3 {
		v, size := 0, min(3, n)
		for range min(2, size) {
			v = v<<8 | int(packed[0])
			packed = packed[1:]
		}
		text = append(text, "   "[:size]...)
		for i := range size {
			text[len(text)-1-i] = nameCharacters[v%len(nameCharacters)]
			v /= len(nameCharacters)
		}
	}
	return text
}
