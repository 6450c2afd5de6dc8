package stream

import (
	"fmt"
	"strconv"
	"strings"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// prefix is that of the names of streams, and root that of subjects.
	prefix = "ipwitness_"
	root   = "ipwitness."
)

// Name returns the name of the stream of a cluster.
func Name(cluster string) string { return prefix + Token(cluster) }

// Subjects returns the subjects of the stream of a cluster.
func Subjects(cluster string) string { return root + Token(cluster) + ".>" }

// What a message may have besides transitions of one kind, as the last part of its subject.
const (
	contentBegins   = "state.begin"
	contentPart     = "state.part"
	contentEnds     = "state.end"
	contentCoverage = "coverage"
	contentSeveral  = "several"
)

// Token returns the name of a cluster as it is written in names of streams and in subjects, which may not
// have every character: such a byte is = and two digits.
func Token(cluster string) string {
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

// NameOf returns the name that Token wrote.
func NameOf(token string) string {
	var out []byte
	for i := 0; i < len(token); i++ {
		if b, err := strconv.ParseUint(token[i+1:min(i+3, len(token))], 16, 8); token[i] == '=' && err == nil {
			out = append(out, byte(b))
			i += 2
		} else {
			out = append(out, token[i])
		}
	}
	return string(out)
}

// subject returns the subject of a message. Its last part says what the message has: transitions of one
// kind, of several kinds, a part of the state, or only the coverage.
func subject(b *pb.TransitionBatch) string { return root + Token(b.GetCluster()) + "." + content(b) }

func content(b *pb.TransitionBatch) string {
	switch b.GetPart() {
	case pb.TransitionBatch_STATE_BEGINS:
		return contentBegins
	case pb.TransitionBatch_STATE_ENDS:
		return contentEnds
	case pb.TransitionBatch_STATE:
		return contentPart
	default:
	}
	if len(b.GetTransitions()) == 0 {
		return contentCoverage
	}
	kind := b.GetTransitions()[0].GetEvent().GetKind()
	for _, t := range b.GetTransitions() {
		if t.GetGap() != nil || t.GetEvent().GetKind() != kind {
			return contentSeveral
		}
	}
	return strings.ToLower(kind.String())
}
