package containers

import (
	"testing"

	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

func TestRemediesAndTextsAboutPools(t *testing.T) {
	ipamtest.CheckEngine(t, &Docker)
	ipamtest.CheckEngine(t, &Podman)
}
