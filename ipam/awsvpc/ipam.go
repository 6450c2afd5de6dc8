// Package awsvpc describes the IPAM of the AWS VPC CNI. Its daemon, ipamd, gives pods secondary
// addresses of the node's network interfaces (ENIs), and keeps the allocations in a checkpoint on
// the node.
package awsvpc

import "github.com/ipwitness/ipwitness/ipam"

// Name is the name of the AWS VPC CNI in the API.
const Name = "aws-vpc"

// IPAM describes the AWS VPC CNI.
var IPAM = ipam.IPAM{
	Name: Name, Title: "the AWS VPC CNI",
	Files: newSource,
	PoolTitle: func(p *ipam.Pool, node string) string {
		if node == "" {
			return "the AWS VPC CNI (" + p.Name + ")"
		}
		return "the AWS VPC CNI on node " + node + " (" + p.Name + ")"
	},
	Repair: repair,
	Docs:   docs,
}
