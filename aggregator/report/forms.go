package report

import (
	"github.com/ipwitness/ipwitness/proto/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The forms of fields that several records have.
var (
	word    = form.Word(maxWord)
	version = form.Text(128)
	problem = form.Text(maxText)
)

// maxMAC is the largest number of bytes of a hardware address (MAX_ADDR_LEN in Linux). It may be empty, an
// EUI-64 (FireWire), 20 bytes long (InfiniBand), or have any other length.
const maxMAC = 32

// report checks each string and bytes field of a report.
func (c *checker) report(m *pb.ReportRequest) {
	if h := m.GetHello(); h != nil {
		c.must("Hello.node", form.Node, h.GetNode())
		c.must("Hello.boot_id", form.ID, h.GetBootId())
		c.must("Hello.netns", form.Digits, h.GetNetns())
		c.text("Hello.version", version, &h.Version)
		c.text("Hello.kernel", version, &h.Kernel)
	}
	for _, n := range m.GetNamespaces() {
		c.text("NamespaceRecord.netns", form.Digits, &n.Netns)
		if n.GetWorkload() != nil {
			c.workload(n.GetWorkload())
		}
		for _, i := range n.GetIntended() {
			c.text("Intended.address", form.Address, &i.Address)
			c.text("Intended.source", word, &i.Source)
			c.text("Intended.interface", form.Interface, &i.Interface)
			c.text("Intended.network", form.Name, &i.Network)
		}
	}
	for _, l := range m.GetLinks() {
		c.text("LinkRecord.name", form.Link, &l.Name)
	}
	for _, i := range m.GetInterfaces() {
		c.text("InterfaceRecord.name", form.Interface, &i.Name)
		c.text("InterfaceRecord.kind", word, &i.Kind)
		c.most("InterfaceRecord.mac", maxMAC, i.GetMac())
		c.text("InterfaceRecord.link", form.Link, &i.Link)
		c.text("InterfaceRecord.host_interface", form.Interface, &i.HostInterface)
		c.text("InterfaceRecord.vrf", form.Interface, &i.Vrf)
	}
	for _, r := range m.GetClaims() {
		c.address("ClaimRecord.address", r.GetAddress())
		c.most("ClaimRecord.mac", maxMAC, r.GetMac())
		c.text("ClaimRecord.link", form.Link, &r.Link)
		c.most("ClaimRecord.source", maxMAC, r.GetSource())
		c.text("ClaimRecord.network", form.Name, &r.Network)
	}
	c.beliefs(m.GetBeliefs())
	for _, a := range m.GetAnswers() {
		c.beliefs(a.GetBeliefs())
		for _, h := range a.GetRoute().GetHops() {
			c.text("Hop.interface", form.Interface, &h.Interface)
			c.text("Hop.link", form.Link, &h.Link)
			if len(h.GetGateway()) > 0 {
				c.address("Hop.gateway", h.GetGateway())
			}
		}
		for _, t := range a.GetTranslations() {
			c.address("TranslationRecord.source", t.GetSource())
			c.address("TranslationRecord.destination", t.GetDestination())
		}
	}
	if s := m.GetStatus(); s != nil {
		c.status(s)
	}
	for _, p := range m.GetPools() {
		c.text("PoolRecord.name", form.Path, &p.Name)
		c.text("PoolRecord.ipam", word, &p.Ipam)
		c.text("PoolRecord.network", form.Name, &p.Network)
		for _, r := range p.GetRanges() {
			c.address("AddressRange.first", r.GetFirst())
			c.address("AddressRange.last", r.GetLast())
		}
		for _, gateway := range p.GetGateways() {
			c.address("PoolRecord.gateways", gateway)
		}
		c.text("PoolRecord.problem", problem, &p.Problem)
		c.text("PoolRecord.plugin", form.Name, &p.Plugin)
		c.text("PoolRecord.device", form.Interface, &p.Device)
		c.text("PoolRecord.config", form.Path, &p.Config)
		c.bytes("PoolRecord.server", p.GetServer(), len(p.GetServer()) == 0 || len(p.GetServer()) == 4)
		c.most("PoolRecord.client_id", 255, p.GetClientId())
	}
	for _, a := range m.GetAllocations() {
		c.text("AllocationRecord.ipam", word, &a.Ipam)
		c.text("AllocationRecord.pool", form.Path, &a.Pool)
		c.address("AllocationRecord.address", a.GetAddress())
		c.text("AllocationRecord.container_id", form.ID, &a.ContainerId)
		c.text("AllocationRecord.interface", form.Interface, &a.Interface)
		c.text("AllocationRecord.namespace", form.Label, &a.Namespace)
		c.text("AllocationRecord.pod", form.Subdomain, &a.Pod)
		c.most("AllocationRecord.mac", maxMAC, a.GetMac())
		c.most("AllocationRecord.former_mac", maxMAC, a.GetFormerMac())
		c.text("AllocationRecord.hostname", form.Text(255), &a.Hostname)
		c.text("AllocationRecord.fixed_in", form.Path, &a.FixedIn)
		c.text("AllocationRecord.reserved_for", form.Text(512), &a.ReservedFor)
	}
}

func (c *checker) beliefs(all []*pb.BeliefRecord) {
	for _, b := range all {
		c.text("BeliefRecord.link", form.Link, &b.Link)
		c.address("BeliefRecord.address", b.GetAddress())
		c.most("BeliefRecord.mac", maxMAC, b.GetMac())
		if len(b.GetTunnel()) > 0 {
			c.address("BeliefRecord.tunnel", b.GetTunnel())
		}
	}
}

func (c *checker) workload(w *pb.Workload) {
	name := form.Name
	if w.GetKind() == pb.Workload_POD { // only Kubernetes restricts names
		name = form.Subdomain
	}
	c.text("Workload.name", name, &w.Name)
	c.text("Workload.namespace", form.Label, &w.Namespace)
	c.text("Workload.uid", form.ID, &w.Uid)
	c.text("Workload.container_id", form.ID, &w.ContainerId)
	c.text("Workload.source", word, &w.Source)
	c.text("Workload.process", form.Process, &w.Process)
	for key, value := range w.GetSources() {
		if !word.Has(key) || !word.Has(value) {
			delete(w.Sources, key)
			c.corrected.count("Workload.sources")
		}
	}
	c.text("Workload.virtual_machine", form.Subdomain, &w.VirtualMachine)
	c.text("Workload.phase", word, &w.Phase)
	c.text("Workload.vip_program", word, &w.VipProgram)
	if of := w.GetController(); of != nil {
		c.text("Controller.kind", word, &of.Kind)
		c.text("Controller.name", form.Subdomain, &of.Name)
	}
}

func (c *checker) status(s *pb.StatusRecord) {
	c.text("StatusRecord.wire", word, &s.Wire)
	for _, p := range s.GetPorts() {
		c.text("Port.interface", form.Interface, &p.Interface)
		c.text("Port.mode", word, &p.Mode)
	}
	c.texts("StatusRecord.problems", problem, s.GetProblems())
	c.text("StatusRecord.runtime", version, &s.Runtime)
	for _, f := range s.GetFlooding() {
		c.text("FloodingRecord.interface", form.Interface, &f.Interface)
	}
	if n := s.GetNodeName(); n != nil {
		c.text("NodeName.name", form.Node, &n.Name)
		c.text("NodeName.file", form.Path, &n.File)
	}
	c.text("StatusRecord.vip_program", word, &s.VipProgram)
	c.texts("StatusRecord.unread_ipams", word, s.GetUnreadIpams())
	c.texts("StatusRecord.unreadable_ipams", word, s.GetUnreadableIpams())
}
