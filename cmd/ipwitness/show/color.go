package show

import (
	"strings"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Tone is the meaning of a colour. A coloured word says the same without its colour.
type Tone int

// The tones.
const (
	PlainTone  Tone = iota
	BadTone         // somebody has to act
	WarnTone        // somebody should look
	GoodTone        // it is over
	DimTone         // of less importance
	StrongTone      // a title
)

// Codes are the escape codes of the tones. Red is bold, so that it differs from green without colours, too.
var Codes = [...]string{BadTone: "1;31", WarnTone: "33", GoodTone: "32", DimTone: "2", StrongTone: "1"}

// painter adds colours if it is true.
type painter bool

// tone colours a text.
func (p painter) tone(t Tone, s string) string {
	if !p || t == PlainTone {
		return s
	}
	return "\x1b[" + Codes[t] + "m" + s + "\x1b[0m"
}

// unless returns the plain tone if a state is as it should be, and otherwise another one.
func unless(good bool, t Tone) Tone {
	if good {
		return PlainTone
	}
	return t
}

// conflictTone returns the tone of the state of a conflict. An acknowledged conflict needs no action.
func conflictTone(c *pb.Conflict) Tone {
	switch {
	case c.GetState() == pb.Conflict_RESOLVED:
		return GoodTone
	case c.GetAcknowledgement() != nil:
		return DimTone
	case c.GetState() == pb.Conflict_CONFIRMED:
		return BadTone
	}
	return WarnTone
}

func ownerTone(o *pb.Owner) Tone { return unless(o.GetState() == pb.Owner_LIVE, WarnTone) }

func nodeTone(n *pb.Node) Tone { return unless(n.GetState() == pb.Node_LIVE, BadTone) }

// findingTone returns the tone of the severity of a finding.
func findingTone(f *pb.Finding) Tone {
	switch f.GetSeverity() {
	case pb.Finding_CRITICAL:
		return BadTone
	case pb.Finding_WARNING:
		return WarnTone
	}
	return PlainTone
}

// tint colours the first occurrence of a word in a text.
func (p painter) tint(t Tone, word, text string) string {
	if word == "" {
		return text
	}
	return strings.Replace(text, word, p.tone(t, word), 1)
}
