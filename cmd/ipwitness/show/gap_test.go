package show

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// gaps returns a gap of each kind, in another order than that of their times.
func gaps() []*pb.Gap {
	return []*pb.Gap{
		{From: at(10 * time.Second), Reason: pb.Gap_NOT_WRITTEN, Lost: 1},
		{From: at(4 * time.Minute), Until: at(200 * time.Second), Reason: pb.Gap_DAMAGED},
		{From: at(100 * time.Second), Until: at(61 * time.Second), Reason: pb.Gap_NOT_RUNNING},
		{From: at(26 * time.Hour), Until: at(25 * time.Hour), Reason: pb.Gap_NOT_WRITTEN, Lost: 1234},
	}
}

func TestGapPeriod(t *testing.T) {
	for want, g := range map[string]*pb.Gap{
		"from 2026-03-14 15:07:46 UTC to 2026-03-14 15:08:25 UTC (the aggregator did not run, or had not heard from all agents yet)": gaps()[2],
		"since 2026-03-14 15:09:16 UTC (the journal could not be written, and 1 change was lost)":                                    gaps()[0],
		"since 2026-03-14 15:09:25.5 UTC (the reason is not known)":                                                                  {From: timestamppb.New(now.Add(-time.Second / 2))},
	} {
		if got := GapPeriod(g); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
