package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Keys in the store. All numbers are big-endian, so that keys sort by them.
//
//	SEGMENT KIND PLACE STAMP                  -> record, for each kind of item
//	SEGMENT byTime STAMP                      -> KIND PLACE
//	SEGMENT byTerm TERM 0 KIND PLACE          -> nothing
//	0 metaSegment SEGMENT                     -> segment
//	0 metaGap STAMP                           -> gap that ended at STAMP
//	0 metaAlive                               -> STAMP at which the journal was last complete
//	0 metaVersion                             -> version of the format
//
// SEGMENT is the number of a segment, counted from 1. A segment contains the records of at most a
// day, and begins with a copy of the state at its start, so that it can be read without earlier ones.
// A STAMP is a time in microseconds since 1970; no two records have the same stamp, except copies.
const (
	byTime = 't'
	byTerm = 'x'

	metaSegment = 's'
	metaGap     = 'g'
	metaAlive   = 'a'
	metaVersion = 'v'
)

const (
	prefixSize = 4 + 1
	placeSize  = 16
	keySize    = prefixSize + placeSize + 8
)

// A stamp is a time in microseconds since 1970.
type stamp = int64

// A place is the address that an item is about. A node, and a finding without an address, has a hash
// instead.
type place [placeSize]byte

func placeOf(a netip.Addr) place { return a.As16() }

func placeOfName(name string) (p place) {
	sum := sha256.Sum256([]byte(name))
	copy(p[:], sum[:])
	return p
}

// address returns the address of a place that has one.
func (p place) address() netip.Addr { return netip.AddrFrom16(p).Unmap() }

func (p place) compare(q place) int { return bytes.Compare(p[:], q[:]) }

// tablePrefix returns the prefix of the keys of one kind in a segment. table is a kind of item,
// byTime or byTerm.
func tablePrefix(segment uint32, table byte) []byte {
	key := make([]byte, prefixSize, keySize)
	binary.BigEndian.PutUint32(key, segment)
	key[4] = table
	return key
}

func itemPrefix(segment uint32, kind pb.Event_Kind, p place) []byte {
	return append(tablePrefix(segment, byte(kind)), p[:]...)
}

func itemKey(segment uint32, kind pb.Event_Kind, p place, at stamp) []byte {
	return binary.BigEndian.AppendUint64(itemPrefix(segment, kind, p), uint64(at))
}

// parseItemKey returns the place and the stamp of an item's key.
func parseItemKey(key []byte) (p place, at stamp) {
	copy(p[:], key[prefixSize:])
	return p, stampOf(key)
}

// stampOf returns the stamp at the end of a key.
func stampOf(key []byte) stamp { return stamp(binary.BigEndian.Uint64(key[len(key)-8:])) }

func timeKey(segment uint32, at stamp) []byte {
	return binary.BigEndian.AppendUint64(tablePrefix(segment, byTime), uint64(at))
}

// termPrefix returns the prefix of the keys of the items that have a term.
func termPrefix(segment uint32, term string) []byte {
	return append(append(tablePrefix(segment, byTerm), term...), 0)
}

func termKey(segment uint32, term string, kind pb.Event_Kind, p place) []byte {
	return append(append(termPrefix(segment, term), byte(kind)), p[:]...)
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

// Terms by which records are found. The value of each is text.
func podTerm(namespace, name string) string { return "p" + namespace + "/" + name }

func namespacePrefix(namespace string) string { return "p" + namespace + "/" }

func macTerm(mac string) string { return "m" + mac }

func nodeTerm(node string) string { return "n" + node }

func addressTerm(a netip.Addr) string { return "a" + a.String() }
