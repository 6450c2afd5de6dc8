package facts

import (
	"hash/maphash"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// texts stores the strings of one node, each once, in an arena with their lengths in front.
type texts struct {
	arena  strings.Builder
	byText table
	count  int
	// kept is the number of texts after the last compaction.
	kept int
}

// A text is the position of a string in the arena of a node, counted from 1; 0 is the empty string.
type text uint32

func (t *texts) get(id text) string {
	if id == 0 {
		return ""
	}
	return textAt(t.arena.String(), id)
}

// textAt returns a string of an arena. Its length is stored in front as a varint.
func textAt(arena string, id text) string {
	at, length := int(id)-1, 0
	for shift := 0; ; shift += 7 {
		b := arena[at]
		at++
		length |= int(b&0x7f) << shift
		if b < 0x80 {
			return arena[at : at+length]
		}
	}
}

// stored returns the number of bytes that a string of a length takes in an arena.
func stored(length int) int {
	bytes := length + 1
	for ; length >= 0x80; length >>= 7 {
		bytes++
	}
	return bytes
}

// find returns the text of a string, and whether it exists.
func (t *texts) find(s string) (text, bool) {
	if s == "" {
		return 0, true
	}
	id := t.byText.find(hashText(s), func(i uint32) bool { return t.get(text(i)) == s })
	return text(id), id != 0
}

// put returns the text of a string, and adds it if necessary.
func (t *texts) put(s string) text {
	if id, there := t.find(s); there {
		return id
	}
	id := text(t.arena.Len() + 1) //nolint:gosec // limits keep it below 2^32
	length := len(s)
	for ; length >= 0x80; length >>= 7 {
		t.arena.WriteByte(byte(length) | 0x80)
	}
	t.arena.WriteByte(byte(length))
	t.arena.WriteString(s)
	t.count++
	t.byText.put(hashText(s), uint32(id), func(i uint32) uint64 { return hashText(t.get(text(i))) })
	return id
}

// wasteful reports whether many texts may be unused.
func (t *texts) wasteful() bool { return t.count > 2*t.kept+64 }

// spare reports whether a large part of the arena is unused.
func (t *texts) spare() bool { return t.arena.Cap()-t.arena.Len() > 256+t.arena.Len()/8 }

// A mac is a hardware address: its bytes if there are 6, otherwise a text with them.
type mac struct {
	bytes [6]byte
	form  macForm
}

type macForm uint8

const (
	noMAC macForm = iota
	sixBytes
	unusualMAC
)

func (t *texts) mac(m verdict.MAC) (out mac) {
	switch len(m) {
	case 0:
	case 6:
		copy(out.bytes[:], m)
		out.form = sixBytes
	default:
		out.setText(t.put(string(m)))
	}
	return out
}

func (m *mac) setText(id text) {
	m.form = unusualMAC
	m.bytes = [6]byte{byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)}
}

func (m mac) text() text {
	return text(m.bytes[0]) | text(m.bytes[1])<<8 | text(m.bytes[2])<<16 | text(m.bytes[3])<<24
}

func (t *texts) macOf(m mac) verdict.MAC {
	switch m.form {
	case noMAC:
		return ""
	case sixBytes:
		return verdict.MAC(m.bytes[:])
	}
	return verdict.MAC(t.get(m.text()))
}

func (t *texts) hashMAC(m mac) uint64 {
	if m.form == sixBytes {
		return maphash.Bytes(seed, m.bytes[:])
	}
	return hashText(string(t.macOf(m)))
}
