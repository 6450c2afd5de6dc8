package show

import (
	"fmt"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// gapReason describes why a period has no records.
func gapReason(g *pb.Gap) string {
	reason := "the reason is not known"
	switch g.GetReason() {
	case pb.Gap_UNSPECIFIED:
	case pb.Gap_NOT_RUNNING:
		reason = "the aggregator did not run, or had not heard from all agents yet"
	case pb.Gap_NOT_WRITTEN:
		reason = "the journal could not be written"
	case pb.Gap_DAMAGED:
		reason = "the records were damaged"
	case pb.Gap_NOT_RECEIVED:
		reason = "messages in the stream of the cluster are missing"
	}
	if g.GetLost() > 0 {
		reason += ", and " + Count(int(g.GetLost()), "change was", "changes were") + " lost"
	}
	return reason
}

// GapPeriod describes a gap: its period, with the time zone, and its reason.
func GapPeriod(g *pb.Gap) string {
	const layout = time.DateTime + ".999 " + zone
	from := g.GetFrom().AsTime().Format(layout)
	if g.GetUntil() == nil {
		return fmt.Sprintf("since %s (%s)", from, gapReason(g))
	}
	return fmt.Sprintf("from %s to %s (%s)", from, g.GetUntil().AsTime().Format(layout), gapReason(g))
}
