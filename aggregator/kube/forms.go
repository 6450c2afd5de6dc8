package kube

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/proto/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The API server checks the names of objects, and little else. A user who may write a custom
// resource, an Event or the references of a pod chooses the strings in it. The forms below are
// applied before other code sees the strings.

// correct brings the given strings into a form.
func correct(of form.Form, fields ...*string) {
	for _, at := range fields {
		*at = of.Correct(*at)
	}
}

var (
	// word is a name as the API uses for kinds, phases and reasons.
	word = form.Word(64)
	// poolName is long enough for KIND NAMESPACE/NAME.
	poolName = form.Text(640)
)

func correctPod(p *verdict.PodObject) {
	correct(form.Label, &p.Namespace)
	correct(form.Subdomain, &p.Name, &p.Controller, &p.VirtualMachine)
	correct(form.ID, &p.UID)
	correct(form.Node, &p.Node, &p.MachineNode)
	correct(word, &p.Phase, &p.ControllerKind)
}

func correctAllocation(al *verdict.Allocation) {
	correct(form.Label, &al.Namespace)
	correct(form.Subdomain, &al.Pod)
	correct(form.Node, &al.Node)
	correct(form.ID, &al.ContainerID)
	correct(form.Interface, &al.Interface)
	correct(form.Name, &al.Purpose)
	correct(form.Text(64), &al.MAC)
	correct(form.Text(64), &al.FormerMAC)
	correct(form.Text(255), &al.Hostname)
	correct(form.Path, &al.FixedIn)
	correct(form.Text(512), &al.ReservedFor)
	correct(form.Text(1024), &al.Location)
}

func correctPool(p *verdict.Pool) {
	correct(word, &p.IPAM, &p.Unread)
	correct(poolName, &p.Name, &p.Config, (*string)(&p.Services))
	correct(form.Name, &p.Network, &p.Realm, &p.Plugin)
	correct(form.Interface, &p.Device)
	correct(form.Text(1024), &p.Problem)
	correct(form.Text(510), &p.ClientID)
	if len(p.Networks) > 0 {
		p.Networks = slices.Clone(p.Networks)
		for i := range p.Networks {
			correct(form.Name, &p.Networks[i])
		}
	}
}

func correctRelated(r *pb.Related) {
	correct(word, &r.Kind, &r.Reason)
	correct(form.Label, &r.Namespace)
	correct(form.Subdomain, &r.Name)
	correct(form.Node, &r.Node)
	correct(form.Text(ipam.MaxMessage), &r.Message)
}
