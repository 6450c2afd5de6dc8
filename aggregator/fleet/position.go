package fleet

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/stream"
)

// A position is how far the journal of a cluster has recorded its stream. It is the note of the journal,
// so it is always that of the last record.
type position struct {
	stream.Position
	// done is the number of transitions of the next message that are recorded.
	done uint32
	// waiting is set while messages are missing, and since is the time from which on they are; zero if
	// that is not known.
	waiting bool
	since   time.Time
	// until is the time up to which everything is recorded, and heard is when the stream got the last
	// message.
	until, heard time.Time
}

// positionSize is the size of an encoded position: a version, and the fields.
const positionSize = 1 + 8 + 8 + 4 + 1 + 3*8

const positionVersion = 1

func (p *position) encode() []byte {
	b := make([]byte, 0, positionSize)
	b = append(b, positionVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(p.Stream))
	b = binary.BigEndian.AppendUint64(b, p.Sequence)
	b = binary.BigEndian.AppendUint32(b, p.done)
	if p.waiting {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	for _, t := range []time.Time{p.since, p.until, p.heard} {
		n := int64(0)
		if !t.IsZero() {
			n = t.UnixMicro()
		}
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return b
}

func decodePosition(b []byte) (p position, err error) {
	if len(b) != positionSize || b[0] != positionVersion {
		return p, errors.New("the journal has no position of this version of ipwitness")
	}
	p.Stream, p.Sequence = int64(binary.BigEndian.Uint64(b[1:])), binary.BigEndian.Uint64(b[9:])
	p.done, p.waiting = binary.BigEndian.Uint32(b[17:]), b[21] != 0
	for i, t := range []*time.Time{&p.since, &p.until, &p.heard} {
		if n := int64(binary.BigEndian.Uint64(b[22+8*i:])); n != 0 {
			*t = time.UnixMicro(n)
		}
	}
	return p, nil
}
