package live

import (
	"net/netip"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/incident"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Converter creates messages that need more than the value that they describe. All fields are
// required, except that Kubernetes is nil if no Kubernetes API is configured. Its methods are called
// with the facts locked.
type Converter struct {
	Facts            *facts.Facts
	Kubernetes       *kube.Cluster
	Findings         *judge.Findings
	Acknowledgements *Acknowledgements
	Recorded         *Recorded
}

func each[A, B any](all []A, message func(A) B) (out []B) {
	for _, one := range all {
		out = append(out, message(one))
	}
	return out
}

// timestamp returns a time in the format of the API, or nil if there is none.
func timestamp(s verdict.Stamp) *timestamppb.Timestamp {
	if s <= 0 {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: int64(s) / 1e9, Nanos: int32(int64(s) % 1e9)}
}

// Scope returns a scope in the format of the API, or nil if there is none.
func Scope(kind verdict.ScopeKind, name string) *pb.Scope {
	if kind == 0 {
		return nil
	}
	return &pb.Scope{Kind: pb.Scope_Kind(kind), Name: name}
}

// Conflict returns a conflict in the format of the API.
func (s *Converter) Conflict(c *verdict.Conflict) *pb.Conflict {
	if c.Recalled {
		if out := s.recalled(c); out != nil {
			return out
		}
	}
	text := explain.Conflict(s.Facts.Policy, c)
	out := Conflict(s.Facts.Policy, c, &text, Owners(c.Address, c.Owners, s.Owner))
	out.Acknowledgement = s.Acknowledgements.Of(c.ID)
	says := explain.Kubernetes{}
	if out.GetState() != pb.Conflict_RESOLVED {
		out.Related = s.Kubernetes.Related(out)
	}
	if c.Active() {
		says.Live, says.Events = s.Kubernetes.Status().GetState() == pb.Kubernetes_LIVE, s.Kubernetes.EventsHeard()
		says.Whole = len(out.GetRelated()) < kube.MostRelated
		says.Related = each(out.GetRelated(), func(r *pb.Related) explain.Related {
			return explain.Related{
				Kind: r.GetKind(), Namespace: r.GetNamespace(), Name: r.GetName(), Reason: r.GetReason(), Message: r.GetMessage(), Count: r.GetCount(),
			}
		})
	}
	if !c.Expected() {
		out.Diagnosis = diagnosisProto(text.Diagnosis, says)
	}
	return out
}

// ConflictIncident returns the ID of the incident of a conflict. One that was not judged since the start is in the same incident as before.
func (s *Converter) ConflictIncident(c *verdict.Conflict) string {
	if recorded, _ := s.Recorded.get(c.ID); c.Recalled && recorded.GetConflict() != nil {
		return incident.Of(recorded)
	}
	return incident.OfConflict(s.Facts.Policy.Cluster, c)
}

// FindingIncident returns the ID of the incident of a finding, as ConflictIncident does.
func (s *Converter) FindingIncident(f *judge.Found) string {
	if recorded, _ := s.Recorded.get(f.ID); f.Unjudged && recorded.GetFinding() != nil {
		return incident.Of(recorded)
	}
	return incident.OfFinding(s.Facts.Policy.Cluster, s.Findings.Whole(f.Finding))
}

// Conflict returns a conflict in the format of the API, without the parts that need an aggregator.
func Conflict(p *verdict.Policy, c *verdict.Conflict, text *explain.ConflictText, owners []*pb.Owner) *pb.Conflict {
	out := Course(c.Address, &c.Identity, &c.Course)
	out.Incident = incident.OfConflict(p.Cluster, c)
	out.Cause, out.Summary, out.Remedy = c.Cause, text.Summary, adviceProto(text.Remedy)
	out.Owners, out.Order, out.Memory = owners, c.Order, memory(c.Past, c.Pools)
	if i := slices.IndexFunc(c.Owners, func(o verdict.Owner) bool { return o.ID == c.Eldest }); i >= 0 {
		out.Eldest = new(uint32(i))
	}
	out.Because, out.Excluded, out.Allocations = text.Because, each(text.Excluded, func(e explain.Excluded) *pb.Exclusion {
		return &pb.Exclusion{Cause: e.Cause, Reason: e.Reason}
	}), each(c.Allocations, allocationProto)
	if !c.Expected() {
		out.Runbook = explain.Runbook(c.Cause)
		out.Diagnosis = diagnosisProto(text.Diagnosis, explain.Kubernetes{})
	}
	return out
}

// Course returns the remembered course of a conflict about an address in the format of the API.
func Course(a netip.Addr, id *verdict.Identity, c *verdict.Course) *pb.Conflict {
	return &pb.Conflict{
		Id: id.ID, Episode: id.Episode, Address: a.String(), Scope: Scope(id.Kind, id.Scope),
		State: pb.Conflict_State(c.Phase), Rule: c.Rule, LinkProof: pb.LinkProof_Kind(c.LinkProof),
		DetectedAt: timestamp(c.DetectedAt), ConfirmedAt: timestamp(c.ConfirmedAt), ResolvedAt: timestamp(c.ResolvedAt),
	}
}

// Node returns a node in the format of the API.
func (s *Converter) Node(n *facts.Node) *pb.Node {
	state := pb.Node_LIVE
	if n.Rec.Unheard {
		state = pb.Node_DISCONNECTED
	}
	// The ports that flood its agent, with the namespace behind each.
	var flooding []*pb.Node_Flooding
	var floods []string
	for _, f := range n.Status.GetFlooding() {
		port := &pb.Node_Flooding{Interface: f.GetInterface(), LeftOut: f.GetLeftOut(), Rate: f.GetRate(), Since: f.GetSince()}
		behind := n.Behind(f.GetIndex())
		if behind != nil {
			port.Workload = workloadProto(&verdict.Owner{Namespace: behind})
		}
		flooding = append(flooding, port)
		floods = append(floods, explain.Flood(f.GetInterface(), behind, f.GetLeftOut(), facts.Stamp(f.GetSince()), f.GetRate()))
	}
	out := &pb.Node{
		Name: n.Rec.Name, State: state, Version: n.Version, Kernel: n.Kernel, BootId: n.ID.Boot, Netns: n.ID.Netns,
		Wire: n.Status.GetWire(), Ports: uint32(n.Ports), Claims: uint32(n.Claims()),
		Namespaces: uint32(n.Namespaces()), LostEvents: n.Status.GetLostEvents(), Problems: s.problems(n, floods),
		ConnectedAt: timestamp(n.ConnectedAt), LastHeard: timestamp(n.LastHeard), Runtime: n.Status.GetRuntime(),
		Flooding: flooding, PrivateInterfaces: uint32(n.PrivateInterfaces()),
		VipProgram: n.Rec.VIPProgram, VipProgramEnded: n.Rec.VIPProgramEnded,
		Incomplete: n.Incomplete(), LeftOut: uint64(n.LeftOut.Records + n.LeftOut.Wire + n.Excess),
	}
	if n.Rec.SkewKnown {
		out.Skew = durationpb.New(n.Rec.Skew)
	}
	if n.Peer != nil {
		if lag, known := n.Peer.Lag(s.Facts.Clock()); known {
			out.Lag = durationpb.New(lag)
		}
	}
	return out
}

// problems describes what is wrong with a node, including ports that flood its agent.
func (s *Converter) problems(n *facts.Node, floods []string) []string {
	all := slices.Clone(n.Status.GetProblems())
	if s.Findings.Shared(n) {
		others, id := s.Findings.Others(n)
		all = append(all, explain.Text("shared-name", "name", n.Name, "others", explain.Names(others), "finding", id))
	}
	if others := s.Facts.InOnePlace(n); others != nil {
		all = append(all, explain.Text("shared-place", "others", explain.Names(others)))
	}
	if pods := s.Facts.WithoutTenant(n); pods > 0 {
		key := "tenants-unknown"
		if s.Facts.Followed {
			key += "/followed"
		}
		all = append(all, explain.Text(key, "pods", pods))
	}
	all = append(all, floods...)
	if u := n.Status.GetUnparsed(); u != nil {
		if text := explain.Unparsed(u.GetTags(), u.GetExtensions(), u.GetOptions()); text != "" {
			all = append(all, text)
		}
	}
	if left := n.LeftOut; left != (facts.LeftOut{}) {
		_, limit := s.Facts.Budget()
		all = append(all, explain.Text("no-memory", "records", left.Records, "sightings", left.Wire, "used", n.Charged()>>20, "limit", limit>>20))
	}
	if n.Excess > 0 {
		all = append(all, explain.Text("too-many-claims", "dropped", n.Excess, "limit", facts.MaxClaims))
	}
	if len(n.Corrections) > 0 {
		all = append(all, explain.Text("corrected", "fields", explain.Fields(n.Corrections)))
	}
	return all
}

// diagnosisProto returns a diagnosis in the format of the API, with the information from Kubernetes.
func diagnosisProto(steps []explain.DiagnosisStep, says explain.Kubernetes) []*pb.DiagnosisStep {
	return each(explain.Diagnose(steps, says), func(s explain.DiagnosisStep) *pb.DiagnosisStep {
		return &pb.DiagnosisStep{Step: s.Step, Answer: s.Answer}
	})
}

// memory returns what cannot be observed again after a restart: earlier states of the records of an
// address, and which of some pools have lost all of theirs.
func memory(past []verdict.Past, pools []*verdict.Pool) (out []*pb.Remembered) {
	for _, p := range pools {
		if p != nil && p.LostAt != 0 {
			al := &verdict.Allocation{Pool: p}
			out = append(out, &pb.Remembered{Kind: verdict.FindingIPAMStateLost, Allocation: allocationProto(al), Since: timestamp(p.LostAt), Count: p.Lost})
		}
	}
	for _, p := range past {
		one := &pb.Remembered{Kind: p.Kind, Owner: p.Owner, Since: timestamp(p.Since), EndedAt: timestamp(p.Ended)}
		if p.Allocation != nil {
			one.Allocation = allocationProto(p.Allocation)
		}
		out = append(out, one)
	}
	return out
}

// allocationProto returns an allocation in the format of the API.
func allocationProto(al *verdict.Allocation) *pb.Allocation {
	out := &pb.Allocation{
		Ipam: al.Pool.IPAM, Pool: al.Pool.Name, Node: al.Node, Namespace: al.Namespace, Pod: al.Pod,
		ContainerId: al.ContainerID, Interface: al.Interface, Location: al.Location, AllocatedAt: timestamp(al.AllocatedAt),
		Mac: al.MAC, Hostname: al.Hostname, Identity: al.Identity,
	}
	if al.Node == "" && al.Pool.Node != nil && al.MAC == "" {
		out.Node = al.Pool.Node.Name // a node's own pool allocates for that node, except for DHCP clients
	}
	return out
}

// Explanation returns an explanation in the format of the API.
func Explanation(p *verdict.Policy, why verdict.Explanation, owner func(netip.Addr, *verdict.Owner, []verdict.Owner) *pb.Owner) *pb.ExplainResponse {
	text := explain.Address(p, &why)
	out := &pb.ExplainResponse{
		Address: why.Address.String(), Summary: text.Summary, Scope: Scope(why.Kind, why.Scope),
		Owners: Owners(why.Address, why.Owners, owner),
	}
	for _, step := range text.Steps {
		out.Steps = append(out.Steps, &pb.ExplainResponse_Step{
			Rule: step.Rule, Scope: Scope(step.Scope.Kind, step.Scope.Text()), Applied: step.Applied, Reason: step.Reason,
		})
	}
	return out
}

// CaseOwner returns an owner of a case in the format of the API, with its missing intended
// addresses as far as the case contains them. all are the owners of the address.
func CaseOwner(p *verdict.Policy, a netip.Addr, o *verdict.Owner, all []verdict.Owner) *pb.Owner {
	out := Owner(p, a, o, all)
	// Whether the owner has the other addresses of its pod is unknown.
	speaks := slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool { return c.Wire() && !c.Weak() })
	out.Intended = intendedProto(slices.DeleteFunc(audit.Intended(o), func(m verdict.Intent) bool {
		if m.Address == a {
			return speaks || o.Assigned && m.Source == audit.SourceKubernetes
		}
		return m.Source == audit.SourceKubernetes
	}))
	return out
}

// Gone returns an owner that was in a conflict and no longer holds the address.
func Gone(a netip.Addr, m *verdict.Member) *pb.Owner {
	o := verdict.Owner{Pod: m.Orphaned}
	if !m.External {
		o.Namespace = &verdict.Namespace{Who: m.Who}
	}
	return &pb.Owner{Address: addressText(a), Node: m.Node, Mac: m.MAC.String(), Workload: workloadProto(&o), State: pb.Owner_GONE}
}
