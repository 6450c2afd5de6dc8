package show

import (
	"strings"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Tone is the meaning of a colour. A coloured word says the same without its colour.
type Tone int

// The tones.
const (
	PlainTone Tone = iota
	BadTone        // somebody has to act
	WarnTone       // somebody should look
	GoodTone       // it is over
	DimTone
)

// painter adds colours if it is true.
type painter bool

func (p painter) with(code, s string) string {
	if !p {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p painter) bold(s string) string   { return p.with("1", s) }
func (p painter) dim(s string) string    { return p.with("2", s) }
func (p painter) red(s string) string    { return p.with("1;31", s) }
func (p painter) green(s string) string  { return p.with("32", s) }
func (p painter) yellow(s string) string { return p.with("33", s) }

// tone colours a text. Red is bold, so that it differs from green without colours, too.
func (p painter) tone(t Tone, s string) string {
	switch t {
	case BadTone:
		return p.red(s)
	case WarnTone:
		return p.yellow(s)
	case GoodTone:
		return p.green(s)
	case DimTone:
		return p.dim(s)
	}
	return s
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

// ownerTone returns the tone of the state of an owner.
func ownerTone(o *pb.Owner) Tone {
	if o.GetState() == pb.Owner_LIVE {
		return PlainTone
	}
	return WarnTone
}

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

// nodeTone returns the tone of the state of a node.
func nodeTone(n *pb.Node) Tone {
	if n.GetState() == pb.Node_LIVE {
		return PlainTone
	}
	return BadTone
}

// clusterTone returns the tone of the state of a cluster.
func clusterTone(c *pb.Cluster) Tone {
	if c.GetState() == pb.Cluster_LIVE {
		return PlainTone
	}
	return BadTone
}

// poolTone returns the tone of the state of a pool.
func poolTone(p *pb.Pool) Tone {
	switch p.GetState() {
	case pb.Pool_KNOWN, pb.Pool_READING:
		return PlainTone
	case pb.Pool_MISSING, pb.Pool_UNREADABLE:
		return BadTone
	}
	return WarnTone
}

// eventTone returns the tone of the state of the item of an event.
func eventTone(e *pb.Event) Tone {
	switch {
	case e.GetType() == pb.Watch_REMOVED:
		return PlainTone
	case e.GetOwner() != nil:
		return ownerTone(e.GetOwner())
	case e.GetConflict() != nil:
		return conflictTone(e.GetConflict())
	case e.GetFinding() != nil:
		return findingTone(e.GetFinding())
	case e.GetNode() != nil:
		return nodeTone(e.GetNode())
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
