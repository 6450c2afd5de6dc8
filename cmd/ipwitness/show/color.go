package show

import (
	"strings"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// tone is the meaning of a colour. A coloured word says the same without its colour.
type tone int

const (
	plainTone tone = iota
	badTone        // somebody has to act
	warnTone       // somebody should look
	goodTone       // it is over
	dimTone
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
func (p painter) tone(t tone, s string) string {
	switch t {
	case badTone:
		return p.red(s)
	case warnTone:
		return p.yellow(s)
	case goodTone:
		return p.green(s)
	case dimTone:
		return p.dim(s)
	}
	return s
}

// conflictTone returns the tone of the state of a conflict. An acknowledged conflict needs no action.
func conflictTone(c *pb.Conflict) tone {
	switch {
	case c.GetState() == pb.Conflict_RESOLVED:
		return goodTone
	case c.GetAcknowledgement() != nil:
		return dimTone
	case c.GetState() == pb.Conflict_CONFIRMED:
		return badTone
	}
	return warnTone
}

// ownerTone returns the tone of the state of an owner.
func ownerTone(o *pb.Owner) tone {
	if o.GetState() == pb.Owner_LIVE {
		return plainTone
	}
	return warnTone
}

// findingTone returns the tone of the severity of a finding.
func findingTone(f *pb.Finding) tone {
	switch f.GetSeverity() {
	case pb.Finding_CRITICAL:
		return badTone
	case pb.Finding_WARNING:
		return warnTone
	}
	return plainTone
}

// nodeTone returns the tone of the state of a node.
func nodeTone(n *pb.Node) tone {
	if n.GetState() == pb.Node_LIVE {
		return plainTone
	}
	return badTone
}

// clusterTone returns the tone of the state of a cluster.
func clusterTone(c *pb.Cluster) tone {
	if c.GetState() == pb.Cluster_LIVE {
		return plainTone
	}
	return badTone
}

// poolTone returns the tone of the state of a pool.
func poolTone(p *pb.Pool) tone {
	switch p.GetState() {
	case pb.Pool_KNOWN, pb.Pool_READING:
		return plainTone
	case pb.Pool_MISSING, pb.Pool_UNREADABLE:
		return badTone
	}
	return warnTone
}

// eventTone returns the tone of the state of the item of an event.
func eventTone(e *pb.Event) tone {
	switch {
	case e.GetType() == pb.Watch_REMOVED:
		return plainTone
	case e.GetOwner() != nil:
		return ownerTone(e.GetOwner())
	case e.GetConflict() != nil:
		return conflictTone(e.GetConflict())
	case e.GetFinding() != nil:
		return findingTone(e.GetFinding())
	case e.GetNode() != nil:
		return nodeTone(e.GetNode())
	}
	return plainTone
}

// tint colours the first occurrence of a word in a text.
func (p painter) tint(t tone, word, text string) string {
	if word == "" {
		return text
	}
	return strings.Replace(text, word, p.tone(t, word), 1)
}
