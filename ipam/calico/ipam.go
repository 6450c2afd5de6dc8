// Package calico describes Calico's IPAM, which keeps blocks of addresses in custom resources of
// the cluster.
package calico

import (
	"cmp"

	"github.com/ipwitness/ipwitness/ipam"
)

// IPAM describes Calico.
var IPAM = ipam.IPAM{
	Name: "calico", Title: "Calico",
	NodeName: newNameReader,
	PoolKind: Pools.Name,
	Objects:  newObjects,
	Repair:   ipam.Repair{Texts: ipam.ReadTexts("calico/remedies.txt"), Words: words, Daemon: daemon},
}

// daemon restores the node's network configuration and allocates the address of its tunnel when it
// starts.
var daemon = ipam.Daemon{Name: "calico-node", Label: "k8s-app=calico-node"}

// words returns the values that the texts of remedies name: the right and the wrong name of the holder's node.
func words(c *ipam.Case) map[string]any {
	h, al := cmp.Or(c.Holder, &ipam.Holder{}), c.Allocation
	right, wrong := cmp.Or(h.KubernetesNode, h.Node), h.WrongName
	w := map[string]any{
		"right": right, "wrong": wrong.Name, "wrong.on": wrong.On(h.Node), "wrong.file": wrong.File, "restartdaemon": daemon.Restart(right),
		"misplaced": "", "conf": "", "file": "", "host": "",
	}
	if c.Holder != nil && al.Node != "" && !h.OfAllocation && (al.Pod == "" || al.Pod == h.Pod && al.Namespace == h.Namespace) {
		w["misplaced"] = "yes"
	}
	switch {
	case wrong.Name == "":
	case wrong.Source == ipam.ConfName:
		w["conf"] = "yes"
	case wrong.Source == ipam.HostName:
		w["file"], w["host"] = "yes", "yes"
	default:
		w["file"] = "yes"
	}
	return w
}
