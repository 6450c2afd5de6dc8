// Package azure describes the IPAM of Azure CNI (Azure/azure-container-networking). On each node,
// the plugin azure-vnet-ipam or the daemon azure-cns allocates addresses, and keeps its records in
// files below /run.
package azure

import (
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// Name is the name of Azure CNI in the API.
const Name = "azure"

// IPAM describes Azure CNI.
var IPAM = ipam.IPAM{
	Name: Name, Title: "Azure CNI",
	Traits: ipam.Traits{
		// azure-vnet writes the record at the end of CNI ADD, when the pod already has the address.
		StartDelay: 10 * time.Second,
	},
	Files:  newSource,
	Repair: ipam.Repair{Texts: ipam.ReadTexts("azure/remedies.txt"), Words: words},
}

// words returns the values that the texts of remedies name: the file of the pool.
func words(c *ipam.Case) map[string]any {
	return map[string]any{"file": strings.TrimSuffix(c.Pool.Name, second)}
}
