package docker

import (
	"testing"

	"github.com/ipwitness/ipwitness/ipam/engine/enginetest"
)

func TestRemediesAndTextsAboutPools(t *testing.T) { enginetest.Check(t, &IPAM) }
