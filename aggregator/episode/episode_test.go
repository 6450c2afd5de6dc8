package episode

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) *timestamppb.Timestamp {
	return timestamppb.New(start.Add(time.Duration(seconds) * time.Second))
}

func TestBegan(t *testing.T) {
	assigned := func(seconds int) *pb.Owner { return &pb.Owner{AssignedAt: at(seconds), FirstSeen: at(100)} }
	observed := func(seconds int) *pb.Owner { return &pb.Owner{FirstSeen: at(seconds)} }
	for _, c := range []struct {
		what   string
		owners []*pb.Owner
		want   int // -1 for not known
	}{
		{"the second owner", []*pb.Owner{assigned(5), assigned(3)}, 5},
		{"the second of three", []*pb.Owner{assigned(9), assigned(5), assigned(3)}, 5},
		{"one owner whose kernel found a duplicate", []*pb.Owner{assigned(7)}, 7},
		{"a device that was there before", []*pb.Owner{assigned(7), observed(2)}, 7},
		{"a device that came later", []*pb.Owner{assigned(2), observed(7)}, -1},
		{"an owner from before a restart", []*pb.Owner{assigned(2), {}}, -1},
		{"no owner", nil, -1},
	} {
		got := Began(&pb.Conflict{Owners: c.owners})
		if c.want < 0 && !got.IsZero() || c.want >= 0 && !got.Equal(at(c.want).AsTime()) {
			t.Errorf("%s: got %s, want %d s", c.what, got, c.want)
		}
	}
}

func TestSame(t *testing.T) {
	for _, c := range []struct {
		a, b time.Time
		want bool
	}{
		{start, start, true},
		{start, start.Add(jitter), true},
		{start.Add(jitter), start, true},
		{start, start.Add(jitter + 1), false},
		{time.Time{}, start, false},
		{start, time.Time{}, false},
		{time.Time{}, time.Time{}, false},
	} {
		if got := Same(c.a, c.b); got != c.want {
			t.Errorf("%s and %s: got %v, want %v", c.a, c.b, got, c.want)
		}
	}
}
