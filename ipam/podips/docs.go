package podips

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What: "the pods' addresses in the Kubernetes API", State: "**tested**", Evidence: "`TestPodsOfARealAPI`",
	}},
	Runbooks: runbooks,
}
