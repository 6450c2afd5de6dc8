// Package awsvpc describes the IPAM of the AWS VPC CNI. Its daemon, ipamd, gives pods secondary
// addresses of the node's network interfaces (ENIs), and keeps the allocations in a checkpoint on
// the node.
package awsvpc

import (
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// Name is the name of the AWS VPC CNI in the API.
const Name = "aws-vpc"

// IPAM describes the AWS VPC CNI.
var IPAM = ipam.IPAM{
	Name: Name, Title: "the AWS VPC CNI",
	Traits: ipam.Traits{
		// The plugin leaves the address on the pod when ipamd has released it. The runtime then removes
		// the pod's network namespace. ipamd itself waits for 30 s before it uses the address again.
		EndDelay: 10 * time.Second,
	},
	Files:  newSource,
	Repair: ipam.Repair{Texts: ipam.ReadTexts("awsvpc/remedies.txt")},
}
