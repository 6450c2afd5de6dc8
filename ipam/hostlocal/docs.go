package hostlocal

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "host-local",
		State:    "**tested**: the real program; its records deleted, replaced, filled up and damaged",
		Evidence: "`tests/ipam_test.go`, `tests/audit_test.go`, `tests/fixplan_test.go`; 250 pods in `make bench`",
	}},
	Mounts: []ipam.Mount{
		{Files: "`/var/lib/cni/networks`: allocations", Mount: "`/var/lib`", Without: "the audit of host-local: duplicates are not predicted"},
		{Files: "`/run/cni-ipam-state`: allocations with kindnet", Mount: "`/run`", Without: "the same"},
	},
	Plan: &ipam.Plan{
		InUseUnallocated: "writes the address's file as host-local does, under its lock, if there is no file and the holder's namespace exists",
		BookedElsewhere:  "changes the file to the holder's name, if it still has the other name and that container does not run",
		Leaked:           "removes the file, if it still has that id, the container does not run, and no namespace of the node has the address",
	},
	Runbooks: runbooks,
}
