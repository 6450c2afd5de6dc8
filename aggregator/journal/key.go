package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"net/netip"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Keys in the store. All numbers are big-endian, so that keys sort by them.
//
//	SEGMENT KIND PLACE OFFSET RECORD          -> nothing, for each kind of item
//	SEGMENT KIND PLACE OFFSET                 -> RECORD, if it is long
//	SEGMENT byTime BUCKET SUBJECT             -> nothing
//	SEGMENT byTerm TERM SUBJECT               -> nothing
//	0 metaSegment SEGMENT                     -> segment
//	0 metaGap STAMP                           -> gap that ended at STAMP
//	0 metaAlive                               -> STAMP at which the journal was last complete
//	0 metaLast                                -> STAMP of the last record
//	0 metaCopied                              -> number of copies at the start of the last segment
//	0 metaVersion                             -> version of the format
//	0 metaInstance STAMP                      -> instance of the process that wrote from STAMP on
//
// SEGMENT is the number of a segment, counted from 1. A segment contains the records of at most a
// day, and begins with a copy of the state at its start, so that it can be read without earlier ones.
// A STAMP is a time in microseconds since 1970; no two records of a segment have the same stamp. An
// OFFSET is a stamp, counted from the base of the segment, and the type of the change. A BUCKET is a time in
// units of 4.2 s: records are found by the bucket and then by their place, because neighbouring places
// take less space than neighbouring times. A SUBJECT is a kind and a place. A RECORD is a part of its
// key because a key without a value takes less space.
const (
	byTime = 't'
	byTerm = 'x'

	metaSegment = 's'
	metaGap     = 'g'
	metaAlive   = 'a'
	metaLast    = 'l'
	metaCopied  = 'k'
	metaVersion = 'v'

	metaInstance = 'i'
)

const (
	prefixSize = 4 + 1
	offsetSize = 5
	// typeBits are the last bits of an offset: the type of the change.
	typeBits = 2
	// maxOffset is the largest offset in microseconds: 3 days.
	maxOffset = 1<<(8*offsetSize-typeBits) - 1
	// bucketBits is the binary logarithm of the number of stamps in a bucket.
	bucketBits = 22
)

// A stamp is a time in microseconds since 1970.
type stamp = int64

// A segment is a part of the journal that begins with a copy of the state at its start.
type segment struct {
	number uint32
	start  stamp
	// complete is set if the copy has been written.
	complete bool
}

// copiesBefore is the largest number of copies at the start of a segment. Their stamps are before the
// start.
const copiesBefore = 1 << 24

// PresentBefore is how long before the start of the journal the times of the items may be that were
// present when it began.
const PresentBefore = copiesBefore * time.Microsecond

func (s segment) base() stamp { return s.start - copiesBefore }

// limit is the stamp after all records of the segment.
func (s segment) limit() stamp { return s.base() + maxOffset }

// A place is the address that an item is about: a tag, and the bytes of the address. A node, and a
// finding without an address, has a hash instead.
type place string

const (
	tag4    = 1
	tag6    = 2
	tagName = 3
	// firstPlace and lastPlace are before and after all places.
	firstPlace place = ""
	lastPlace  place = "\xff"
	nameSize         = 16
)

func placeOf(a netip.Addr) place {
	if a = a.Unmap(); a.Is4() {
		return place(append([]byte{tag4}, a.AsSlice()...))
	}
	return place(append([]byte{tag6}, a.AsSlice()...))
}

func placeOfName(name string) place {
	sum := sha256.Sum256([]byte(name))
	return place(append([]byte{tagName}, sum[:nameSize]...))
}

func (p place) address() (a netip.Addr) {
	if len(p) > 1 && p[0] != tagName {
		a, _ = netip.AddrFromSlice([]byte(p[1:]))
	}
	return a
}

var errDamagedRecord = errors.New("a record is damaged")

// addressSizes are the lengths of what follows the tags of places.
var addressSizes = [16]int{tag4: 4, tag6: 16, tagName: nameSize}

// A subject is a place with items of one kind.
type subject struct {
	kind  pb.Event_Kind
	place place
}

func (s subject) append(key []byte) []byte {
	return append(append(key, byte(s.kind)<<4|s.place[0]), s.place[1:]...)
}

func parseSubject(key []byte) (s subject, err error) {
	if len(key) < 2 || len(key) != 1+addressSizes[key[0]&0xf] {
		return s, errDamagedRecord
	}
	p := bytes.Clone(key)
	p[0] &= 0xf
	return subject{pb.Event_Kind(key[0] >> 4), place(p)}, nil
}

// tablePrefix returns the prefix of the keys of one table in a segment: a kind of item, byTime or byTerm.
func tablePrefix(segment uint32, table byte) []byte {
	key := make([]byte, prefixSize, 32)
	binary.BigEndian.PutUint32(key, segment)
	key[4] = table
	return key
}

func itemPrefix(segment uint32, kind pb.Event_Kind, p place) []byte {
	return append(tablePrefix(segment, byte(kind)), p...)
}

// itemKey returns the key before all records of an item at a time.
func itemKey(seg segment, kind pb.Event_Kind, p place, at stamp) []byte {
	var offset [8]byte
	binary.BigEndian.PutUint64(offset[:], uint64(min(max(at-seg.base(), 0), maxOffset))<<typeBits)
	return append(itemPrefix(seg.number, kind, p), offset[8-offsetSize:]...)
}

// maxInKey is the length of the longest record that is a part of its key.
const maxInKey = 512

// parseItemKey returns the place, the type of the change, the stamp and the record in an item's key. Place
// and record are parts of the key.
func parseItemKey(seg segment, key []byte) (p []byte, typ pb.Watch_Type, at stamp, record []byte, err error) {
	if len(key) <= prefixSize {
		return nil, 0, 0, nil, errDamagedRecord
	}
	size := addressSizes[key[prefixSize]&0xf]
	end := prefixSize + 1 + size
	if size == 0 || len(key) < end+offsetSize {
		return nil, 0, 0, nil, errDamagedRecord
	}
	var offset [8]byte
	copy(offset[8-offsetSize:], key[end:end+offsetSize])
	n := binary.BigEndian.Uint64(offset[:])
	return key[prefixSize:end], pb.Watch_Type(n & (1<<typeBits - 1)), seg.base() + stamp(n>>typeBits), key[end+offsetSize:], nil
}

func bucketOf(at stamp) uint32 { return uint32(min(max(at, 0)>>bucketBits, 1<<32-1)) }

func timePrefix(segment, bucket uint32) []byte {
	return binary.BigEndian.AppendUint32(tablePrefix(segment, byTime), bucket)
}

func timeKey(segment uint32, at stamp, s subject) []byte {
	return s.append(timePrefix(segment, bucketOf(at)))
}

func parseTimeKey(key []byte) (bucket uint32, s subject, err error) {
	if len(key) < prefixSize+4 {
		return 0, s, errDamagedRecord
	}
	s, err = parseSubject(key[prefixSize+4:])
	return binary.BigEndian.Uint32(key[prefixSize:]), s, err
}

// A term is something by which subjects are found: its type and hashes of its parts. Other subjects
// may have the same term.
type term string

const addressType = 'a'

func podTerm(namespace, name string) term { return namespaceTerm(namespace) + term(hashed(name)[1:]) }

// namespaceTerm is the beginning of the terms of the pods in a namespace.
func namespaceTerm(namespace string) term { return term("p" + hashed(namespace)) }

func macTerm(mac string) term { return term("m" + hashed(mac)) }

func nodeTerm(node string) term { return term("n" + hashed(node)) }

func addressTerm(a netip.Addr) term { return term(addressType) + term(placeOf(a)) }

func hashed(text string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // a hash.Hash never fails
	return string(h.Sum(nil))
}

// size returns the length of a whole term that begins like this.
func (t term) size() int {
	switch t[0] {
	case 'p':
		return 8
	case addressType:
		return len(t)
	}
	return 5
}

func termPrefix(segment uint32, t term) []byte { return append(tablePrefix(segment, byTerm), t...) }

// parseTermKey returns the subject of a key with a term that begins like t.
func parseTermKey(t term, key []byte) (s subject, err error) {
	if len(key) < prefixSize+t.size() {
		return s, errDamagedRecord
	}
	return parseSubject(key[prefixSize+t.size():])
}

func metaKey(what byte, number uint64) []byte {
	return binary.BigEndian.AppendUint64(tablePrefix(0, what), number)
}

// after returns the first key after all keys with a prefix.
func after(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
