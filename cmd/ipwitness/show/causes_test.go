package show

import (
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

func TestEachCauseIsDescribed(t *testing.T) {
	for _, cause := range verdict.Causes() {
		if causes[cause] == "" {
			t.Errorf("cause %s has no description", cause)
		}
	}
}
