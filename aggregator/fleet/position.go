package fleet

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/stream"
)

// A position is how far the journal of a cluster has recorded its stream. It is the note of the journal, in JSON,
// so it is always that of the last record.
type position struct {
	stream.Position
	// Done is the number of transitions of the next message that are recorded.
	Done uint32
	// Waiting is set while messages are missing, and Since is the time from which on they are; zero if
	// that is not known.
	Waiting bool
	Since   time.Time
	// Until is the time up to which everything is recorded, and Heard is when the stream got the last
	// message.
	Until, Heard time.Time
}

func (p *position) encode() []byte { return encode(p) }

// encode returns the JSON of a value of this package, which always has one.
func encode(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

func token(v any) string { return base64.RawURLEncoding.EncodeToString(encode(v)) }

// parseToken parses a token into a value. It leaves the value as it is if the token is empty.
func parseToken(token string, into any) error {
	if token == "" {
		return nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	return errors.Join(err, json.Unmarshal(raw, into))
}
