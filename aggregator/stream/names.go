package stream

import (
	"fmt"
	"slices"
	"strings"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// prefix is that of the names of streams, and root that of subjects.
	prefix = "ipwitness_"
	root   = "ipwitness."
)

// Name returns the name of the stream of a cluster.
func Name(cluster string) string { return prefix + token(cluster) }

// Subjects returns the subjects of the stream of a cluster.
func Subjects(cluster string) string { return root + token(cluster) + ".>" }

// What a message may have besides transitions of one kind, as the last part of its subject.
const (
	contentBegins   = "state.begin"
	contentPart     = "state.part"
	contentEnds     = "state.end"
	contentCoverage = "coverage"
	contentSeveral  = "several"
)

// token returns the name of a cluster as it is written in names of streams and in subjects, which may not
// have every character: such a byte is = and two digits.
func token(cluster string) string {
	var out strings.Builder
	for _, b := range []byte(cluster) {
		if b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '_' {
			out.WriteByte(b)
		} else {
			fmt.Fprintf(&out, "=%02X", b)
		}
	}
	return out.String()
}

// subject returns the subject of a message. Its last part says what the message has: transitions of one
// kind, of several kinds, a part of the state, or only the coverage.
func subject(b *pb.TransitionBatch) string {
	content := contentCoverage
	switch some := b.GetTransitions(); {
	case b.GetPart() == pb.TransitionBatch_STATE_BEGINS:
		content = contentBegins
	case b.GetPart() == pb.TransitionBatch_STATE_ENDS:
		content = contentEnds
	case b.GetPart() == pb.TransitionBatch_STATE:
		content = contentPart
	case len(some) > 0:
		kind := some[0].GetEvent().GetKind()
		content = strings.ToLower(kind.String())
		if slices.ContainsFunc(some, func(t *pb.Transition) bool { return t.GetGap() != nil || t.GetEvent().GetKind() != kind }) {
			content = contentSeveral
		}
	}
	return root + token(b.GetCluster()) + "." + content
}
