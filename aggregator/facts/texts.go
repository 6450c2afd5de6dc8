package facts

import (
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// texts are the strings of one node: each once, one after the other in an arena.
type texts struct {
	arena  strings.Builder
	places []place // places[0] is the empty string
	byText table
	// kept is the number of texts that the last compaction left.
	kept int
}

// A text is the number of a string of a node; 0 is the empty one.
type text uint32

type place struct{ from, length uint32 }

func (t *texts) get(id text) string {
	if id == 0 {
		return ""
	}
	p := t.places[id]
	return t.arena.String()[p.from : p.from+p.length]
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
	if len(t.places) == 0 {
		t.places = append(t.places, place{})
	}
	id := text(len(t.places))                                                 //nolint:gosec // limits keep it below 2^32
	t.places = append(t.places, place{uint32(t.arena.Len()), uint32(len(s))}) //nolint:gosec // likewise
	t.arena.WriteString(s)
	t.byText.put(hashText(s), uint32(id), func(i uint32) uint64 { return hashText(t.get(text(i))) })
	return id
}

// wasteful reports whether many texts may not be used any more.
func (t *texts) wasteful() bool { return len(t.places) > 2*t.kept+64 }

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
