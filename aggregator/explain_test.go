package aggregator

import (
	"context"
	"encoding/json"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/casefile"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// TestACaseIsExplainedAgain judges the case of a conflict again, as `ipwitness judge` does.
func TestACaseIsExplainedAgain(t *testing.T) {
	l := newLab(t, Config{Version: "v1.2.3"})
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))).sync()
	l.conflict(pb.Conflict_SUSPECTED)

	want, err := l.client.Explain(context.Background(), &pb.ExplainRequest{Address: addr, Case: true})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := want.GetCase().MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	f, err := casefile.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	if f.Version != "v1.2.3" || !reflect.DeepEqual(f.Policy.Settle, l.core.facts.Policy.Settle) {
		t.Errorf("got version %q, policy %+v, want those of the aggregator", f.Version, f.Policy)
	}
	got, changes := api.Judge(f)
	if len(changes) > 0 || f.Judged["the number of conflicts"] != "1" {
		t.Errorf("got %q since %v, want no change by the same version", changes, f.Judged)
	}
	if got.GetCoverage().GetIncomplete() != want.GetCoverage().GetIncomplete() {
		t.Errorf("got coverage %v, want %v", got.GetCoverage(), want.GetCoverage())
	}
	got.Coverage, want.Coverage, want.Case = nil, nil, nil
	if !proto.Equal(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
	if without, err := l.client.Explain(context.Background(), &pb.ExplainRequest{Address: addr}); err != nil || without.GetCase() != nil {
		t.Errorf("got case %v (%v), want none: none was requested", without.GetCase(), err)
	}
}

func TestRESTOfACase(t *testing.T) {
	l := newLab(t, Config{})
	url := l.serve()
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	code, _, body := get(t, url+"/v1/explain?case=true&address="+addr)
	var answer struct{ Case json.RawMessage }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != 200 {
		t.Fatalf("got %d %s (%v)", code, body, err)
	}
	f, err := casefile.Decode(answer.Case)
	if err != nil || len(f.Case.Claims) != 1 || f.Case.Address.String() != addr {
		t.Errorf("got %+v (%v), want the case of %s", f, err, addr)
	}
	if code, _, body := get(t, url+"/v1/explain?case=perhaps&address="+addr); code != 400 {
		t.Errorf("got %d %s, want 400", code, body)
	}
}

// TestCaseNamesOwnersOfResolvedConflicts checks the owners of a resolved conflict in a case, and
// an owner that lacks an intended address.
func TestCaseNamesOwnersOfResolvedConflicts(t *testing.T) {
	l := newLab(t, Config{})
	one := podVeth(2, "a", addr)
	one.Namespaces[0].Intended = []*pb.Intended{{Address: "10.0.0.77", Source: "cri", Interface: "net1"}}
	n := l.dial().send(snapshot(hello("n1", 1), one, podVeth(3, "b", addr))).sync()
	l.conflict(pb.Conflict_SUSPECTED)
	n.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 3, Gone: true}}}).sync()
	l.conflict(pb.Conflict_RESOLVED)

	want, err := l.client.Explain(context.Background(), &pb.ExplainRequest{Address: addr, Case: true})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := want.GetCase().MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	f, err := casefile.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := api.Judge(f)
	if len(got.GetConflicts()) != 1 || len(got.GetConflicts()[0].GetOwners()) != 2 {
		t.Fatalf("got %v, want a conflict of two owners", got.GetConflicts())
	}
	for i, o := range got.GetConflicts()[0].GetOwners() {
		live := want.GetConflicts()[0].GetOwners()[i]
		if o.GetState() != live.GetState() || o.GetNode() != live.GetNode() || !proto.Equal(o.GetWorkload(), live.GetWorkload()) {
			t.Errorf("got %v, want the equal fields of %v", o, live)
		}
	}
	if lacks := got.GetOwners()[0].GetIntended(); len(lacks) != 1 || !proto.Equal(lacks[0], want.GetOwners()[0].GetIntended()[0]) {
		t.Errorf("got %v intended, want those of %v", lacks, want.GetOwners())
	}
}
