package api

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestTheIndexHasEveryPath(t *testing.T) {
	var api struct {
		Paths map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(pb.OpenAPI, &api); err != nil {
		t.Fatal(err)
	}
	if len(api.Paths) < 10 {
		t.Fatalf("got %d paths, want those of the API", len(api.Paths))
	}
	listed := strings.Fields(indexPage)
	for path := range api.Paths {
		if !slices.Contains(listed, path) {
			t.Errorf("the index has no %s", path)
		}
	}
}
