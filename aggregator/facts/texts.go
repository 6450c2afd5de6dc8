package facts

import (
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// texts are the strings of one node: each once, one after the other in an arena, with its length
// before it.
type texts struct {
	arena  strings.Builder
	byText table
	count  int
	// kept is the number of texts that the last compaction left.
	kept int
}

// A text is where in the arena of a node a string begins, counted from 1; 0 is the empty string.
type text uint32

func (t *texts) get(id text) string {
	if id == 0 {
		return ""
	}
	return textAt(t.arena.String(), id)
}

// textAt returns a string of an arena. The length before it is a varint.
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

// find returns the number of a string and whether it is there.
func (t *texts) find(s string) (text, bool) {
	if s == "" {
		return 0, true
	}
	id := t.byText.find(hashText(s), func(i uint32) bool { return t.get(text(i)) == s })
	return text(id), id != 0
}

// put returns the number of a string, which is added if necessary.
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

// wasteful reports whether many texts may not be used any more.
func (t *texts) wasteful() bool { return t.count > 2*t.kept+64 }

// spare reports whether much of the arena is not used.
func (t *texts) spare() bool { return t.arena.Cap()-t.arena.Len() > 256+t.arena.Len()/8 }

// A mac is a hardware address of 6 bytes, or the number of the text that is another one.
type mac struct {
	bytes [6]byte
	form  macForm
}

type macForm uint8

const (
	noMAC macForm = iota
	sixBytes
	oddMAC
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
	m.form = oddMAC
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
		return maphashBytes(m.bytes[:])
	}
	return hashText(string(t.macOf(m)))
}
