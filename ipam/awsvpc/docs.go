package awsvpc

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "AWS VPC CNI (`ipam.json`; secondary addresses, prefixes, IPv6)",
		State:    "**tested**: its real datastore, checkpoint and CNI plugin 1.23.2, without EC2. Addresses of branch ENIs (security groups for pods) are not audited",
		Evidence: "`TestAllocationsThatIPAMDForgetsAreReported`, `TestChurnOfTheAWSVPCCNIIsSilent`, `TestRemediesForTheAWSVPCCNILeaveTheRightOwner`",
	}},
	Mounts: []ipam.Mount{
		{Files: "`/run/aws-node`: allocations (`/var/run` is a link to `/run`)", Mount: "`/run`", Without: "the audit of the AWS VPC CNI: duplicates are not predicted"},
		{Files: "`/var/lib/cni/results`: which pods have branch ENIs", Mount: "`/var/lib`", Without: "the network of pods, and so their audit"},
	},
	Plan: &ipam.Plan{
		InUseUnallocated: "by hand, because ipamd cannot record an address for a running pod",
		BookedElsewhere:  "by hand",
		Leaked:           "nothing, because ipamd drops the record when it is started the next time",
	},
	Runbooks: runbooks,
}
