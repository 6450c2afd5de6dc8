package aggregator

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ipwitness/ipwitness/aggregator/report"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/awsvpc"
	"github.com/ipwitness/ipwitness/ipam/azure"
	"github.com/ipwitness/ipwitness/ipam/dhcp"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/canary"
)

// textFields returns the fields of a report that have strings or bytes, by the keys of their rules.
func textFields() map[string]protoreflect.FieldDescriptor {
	found := map[string]protoreflect.FieldDescriptor{}
	var walk func(of protoreflect.MessageDescriptor)
	walk = func(of protoreflect.MessageDescriptor) {
		for i := range of.Fields().Len() {
			f := of.Fields().Get(i)
			switch {
			case f.Kind() == protoreflect.StringKind, f.Kind() == protoreflect.BytesKind, f.IsMap():
				found[string(of.Name())+"."+string(f.Name())] = f
			case f.Message() != nil && f.Message().ParentFile().Package() == of.ParentFile().Package():
				walk(f.Message())
			}
		}
	}
	walk((*pb.ReportRequest)(nil).ProtoReflect().Descriptor())
	return found
}

// poison replaces the nth string or bytes field of a message with a payload. It returns the key of
// that field, or an empty string if the message has fewer of them.
func poison(m protoreflect.Message, n int, payload string) (key string) {
	left := n
	set := func(f protoreflect.FieldDescriptor) (protoreflect.Value, bool) {
		switch {
		case key != "" || f.Kind() != protoreflect.StringKind && f.Kind() != protoreflect.BytesKind:
			return protoreflect.Value{}, false
		case left > 0:
			left--
			return protoreflect.Value{}, false
		}
		key = string(f.ContainingMessage().Name()) + "." + string(f.Name())
		if f.Kind() == protoreflect.BytesKind {
			return protoreflect.ValueOfBytes([]byte(payload)), true
		}
		return protoreflect.ValueOfString(payload), true
	}
	var walk func(m protoreflect.Message)
	walk = func(m protoreflect.Message) {
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			switch v := m.Get(f); {
			case !m.Has(f):
			case f.IsMap():
				for _, k := range mapKeys(v.Map()) {
					of := string(m.Descriptor().Name()) + "." + string(f.Name())
					if left == 0 && key == "" {
						v.Map().Set(protoreflect.ValueOfString(payload).MapKey(), v.Map().Get(k))
						v.Map().Set(k, protoreflect.ValueOfString(payload))
						key = of
					}
					left--
				}
			case f.IsList():
				for j := range v.List().Len() {
					if f.Message() != nil {
						walk(v.List().Get(j).Message())
					} else if text, ok := set(f); ok {
						v.List().Set(j, text)
					}
				}
			case f.Message() != nil:
				walk(v.Message())
			default:
				if text, ok := set(f); ok {
					m.Set(f, text)
				}
			}
		}
	}
	walk(m)
	return key
}

func mapKeys(m protoreflect.Map) (keys []protoreflect.MapKey) {
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool { keys = append(keys, k); return true })
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) })
	return keys
}

// everything returns the report of a node with many problems, with every string field filled. Nodes
// with different numbers have different addresses.
func everything(number int) *pb.ReportRequest {
	at := func(address string) string { return fmt.Sprintf("%d.%d.%s", 10+number>>8, number&255, address) }
	a, b := kindPod(2, "a", at("0.5")), kindPod(3, "b", at("0.5"))
	a.Namespaces[0].Intended = []*pb.Intended{{Address: at("0.9"), Source: "cri", Interface: "eth1", Network: "lan"}}
	a.Namespaces[0].Workload.Sources = map[string]string{"uid": "cgroup"}
	a.Namespaces[0].Workload.Process, a.Namespaces[0].Workload.VipProgram = "pause (12)", "keepalived"
	a.Interfaces[0].Vrf = "red"
	named, process := podVeth(4, "x", at("0.7")), podVeth(5, "x", at("0.7"))
	named.Namespaces[0].Workload = &pb.Workload{Kind: pb.Workload_CONTAINER, Name: "lab", Source: "netns"}
	process.Namespaces[0].Workload = &pb.Workload{Kind: pb.Workload_UNKNOWN, Process: "sleep (42)", Source: "process"}
	container, anonymous := podVeth(6, "x", at("0.8")), podVeth(7, "x", at("0.8"))
	container.Namespaces[0].Workload = &pb.Workload{Kind: pb.Workload_CONTAINER, Name: "db", ContainerId: "0123456789abcdef", Source: "cgroup"}
	anonymous.Namespaces[0].Workload = &pb.Workload{Kind: pb.Workload_POD, Uid: "0125ec2f-b64a", Source: "cgroup"}
	machine := podVeth(10, "vm", at("0.40"))
	machine.Namespaces[0].Workload.VirtualMachine = "db"
	machine.Namespaces[0].Workload.Controller = &pb.Controller{Kind: "VirtualMachineInstance", Name: "db"}
	machine.Namespaces[0].Workload.Phase = "Running"
	outside := announced(4, at("0.41"), []byte{2, 9, 9, 9, 9, 9})
	outside.Source = []byte{2, 9, 9, 9, 9, 8}
	tunnel := &pb.ReportRequest{
		Links: []*pb.LinkRecord{{Name: "tunl0", Kind: pb.LinkRecord_UPLINK}},
		Interfaces: []*pb.InterfaceRecord{{
			Namespace: 1, Index: 2, Name: "tunl0", Kind: "ipip", Attachment: pb.InterfaceRecord_OWN, Link: "tunl0", HostInterface: "tunl0", Uplink: true,
		}},
		Claims: []*pb.ClaimRecord{assigned(1, at("0.42")), outside},
	}
	overlapping, unreadable := hostLocal(at("0.0/25"), pb.Pool_KNOWN), hostLocal(at("9.0/24"), pb.Pool_UNREADABLE)
	overlapping.Name, overlapping.Network, overlapping.Device = "/var/lib/cni/networks/other", "other", "cni0"
	unreadable.Name, unreadable.Problem = "/var/lib/cni/networks/broken", "it cannot be read"
	recorded, forgotten := kindPod(12, "f", at("8.5")), kindPod(13, "g", at("8.6"))
	recorded.Claims[0].Network, forgotten.Claims[0].Network = "azure", "aws-cni"
	azureFile := &pb.PoolRecord{Ipam: azure.Name, Name: "/run/azure-cns/azure-endpoints.json", Network: "azure", State: pb.Pool_KNOWN}
	awsFile := &pb.PoolRecord{Ipam: awsvpc.Name, Name: "/run/aws-node/ipam.json", Network: "aws-cni", State: pb.Pool_KNOWN}
	leased := podVeth(14, "h", at("8.8"))
	server := &pb.PoolRecord{
		Ipam: dhcp.DnsmasqName, Name: "/var/lib/misc/dnsmasq.leases#br0", Device: leased.Links[0].Name, State: pb.Pool_KNOWN, Config: "/etc/dnsmasq.conf", Server: []byte{10, 9, 9, 1}, ClientId: []byte{1},
		Ranges: []*pb.AddressRange{{First: netip.MustParseAddr(at("8.8")).AsSlice(), Last: netip.MustParseAddr(at("8.9")).AsSlice()}},
	}
	client := &pb.AllocationRecord{Ipam: server.GetIpam(), Pool: server.GetName(), Address: netip.MustParseAddr(at("8.8")).AsSlice(), Mac: []byte{2, 9, 9, 9, 9, 7}, FormerMac: []byte{2, 9, 9, 9, 9, 8}, Hostname: "laptop", FixedIn: "/etc/dnsmasq.d/dock", ReservedFor: "02:09:09:09:09:07 02:09:09:09:09:08"}
	h := hello(nodeName(number), 1)
	h.BootId = bootID(number)
	m := snapshot(h, a, b, named, process, container, anonymous, kindPod(8, "c", at("0.30")), kindPod(9, "d", at("0.31")),
		machine, tunnel, kindPod(11, "e", at("0.42")), poolOf(hostLocal(at("0.0/24"), pb.Pool_KNOWN), overlapping, unreadable),
		given(allocated(at("0.5"), "sandbox-b"), allocated(at("0.31"), "sandbox-old"), allocated(at("0.20"), "sandbox-gone")),
		recorded, forgotten, poolOf(azureFile, awsFile), leased, poolOf(server), given(client), given(allocatedToPod(azureFile, at("8.5"), "old"), allocatedToPod(awsFile, at("8.7"), "gone")))
	m.Beliefs = []*pb.BeliefRecord{{
		Link: machine.Links[0].Name, Address: netip.MustParseAddr(at("0.40")).AsSlice(), Mac: []byte{2, 9, 9, 9, 9, 6}, State: pb.BeliefRecord_PERMANENT, Count: 1,
		Holders: []*pb.BeliefRecord_Holder{{Namespace: 2, Index: 2}}, Tunnel: []byte{192, 0, 2, 40},
	}}
	m.Answers = []*pb.BeliefAnswer{{Route: &pb.RouteRecord{Kind: pb.Senders_Route_PATHS, Hops: []*pb.RouteRecord_Hop{{Interface: "eth0", Link: "eth0", Gateway: []byte{10, 0, 0, 1}}}}, Translations: []*pb.TranslationRecord{{
		Protocol: unix.IPPROTO_TCP, Source: netip.MustParseAddr(at("0.5")).AsSlice(), Destination: netip.MustParseAddr(at("0.9")).AsSlice(), Port: 80,
	}}}}
	m.Status = &pb.StatusRecord{
		Wire: "tcx", Ports: []*pb.Node_Port{{Interface: "eth0", Mode: "tcx"}}, Problems: []string{"something"}, Runtime: "containerd 1.7", NodeName: &pb.NodeName{Name: "other", Source: pb.NodeName_FILE, File: "/other"}, VipProgram: "keepalived", UnreadIpams: []string{"azure"}, UnreadableIpams: []string{"docker"}, Flooding: []*pb.FloodingRecord{{Index: 2, Interface: "eth0", LeftOut: 3, Rate: 4}},
	}
	return m
}

// allocatedToPod returns an allocation of an IPAM that records the names of pods.
func allocatedToPod(p *pb.PoolRecord, addr, pod string) *pb.AllocationRecord {
	al := allocated(addr, "sandbox-"+pod)
	al.Ipam, al.Pool, al.Namespace, al.Pod = p.GetIpam(), p.GetName(), "default", pod
	return al
}

func nodeName(number int) string { return fmt.Sprintf("n%d", number) }

func bootID(number int) string { return fmt.Sprintf("4203561e-1821-45b6-a68a-%012d", number) }

// reported is everything that an aggregator reports through its API, with the output of the command
// line for it.
type reported struct {
	messages []proto.Message
	shown    string
	nodes    map[string]*pb.Node
	owners   map[string]int           // of each node
	findings map[string][]*pb.Finding // about each node
	made     time.Time
}

// allPages joins the pages of a list.
func allPages[M interface {
	proto.Message
	GetNextPageToken() string
}](list func(token string) (M, error)) (all M, err error) {
	if all, err = list(""); err != nil {
		return all, err
	}
	for token := all.GetNextPageToken(); token != ""; {
		page, err := list(token)
		if err != nil {
			return all, err
		}
		token = page.GetNextPageToken()
		proto.Merge(all, page)
	}
	return all, nil
}

func (l *lab) reported() reported {
	l.Helper()
	out := reported{nodes: map[string]*pb.Node{}, owners: map[string]int{}, findings: map[string][]*pb.Finding{}, made: time.Now()}
	now := out.made
	var b bytes.Buffer
	check := func(err error) {
		if err != nil {
			l.Fatal(err)
		}
	}
	owners, err := allPages(func(token string) (*pb.ListOwnersResponse, error) {
		return l.client.ListOwners(l.ctx, &pb.ListOwnersRequest{PageToken: token})
	})
	check(err)
	conflicts, err := allPages(func(token string) (*pb.ListConflictsResponse, error) {
		return l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{All: true, PageToken: token})
	})
	check(err)
	findings, err := allPages(func(token string) (*pb.ListFindingsResponse, error) {
		return l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{PageToken: token})
	})
	check(err)
	nodes, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
	check(err)
	pools, err := allPages(func(token string) (*pb.ListPoolsResponse, error) {
		return l.client.ListPools(l.ctx, &pb.ListPoolsRequest{PageToken: token})
	})
	check(err)
	out.messages = append(out.messages, owners, conflicts, findings, nodes, pools)
	check(show.Owners(&b, owners.GetOwners(), show.NewMarks(owners.GetOwners(), conflicts.GetConflicts()), show.Layout{Wide: true}, now))
	_, err = show.Conflicts(&b, conflicts.GetConflicts(), show.Layout{Wide: true}, now)
	check(err)
	check(show.Findings(&b, findings.GetFindings(), show.Layout{Wide: true}, now))
	check(show.Nodes(&b, nodes, show.Layout{Wide: true}, now))
	check(show.Pools(&b, pools.GetPools(), show.Layout{Wide: true}))
	for _, n := range nodes.GetNodes() {
		out.nodes[n.GetName()] = n
	}
	explained := map[string]bool{}
	for _, o := range owners.GetOwners() {
		out.owners[o.GetNode()]++
		if explained[o.GetAddress()] {
			continue
		}
		explained[o.GetAddress()] = true
		e, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: o.GetAddress()})
		check(err)
		out.messages = append(out.messages, e)
		check(show.Explain(&b, e, show.Layout{}, now))
	}
	for _, c := range conflicts.GetConflicts() {
		check(show.Conflict(&b, c, show.Layout{}, now))
	}
	for _, f := range findings.GetFindings() {
		for _, node := range f.GetNodes() {
			out.findings[node] = append(out.findings[node], f)
		}
		check(show.Finding(&b, f, show.Layout{}, now))
	}
	out.shown = b.String()
	return out
}

// reportAll sends the reports, each of one node, and returns everything that the aggregator
// reports and the error for each refused report.
func reportAll(t *testing.T, reports []*pb.ReportRequest) (out reported, refused []error) {
	t.Helper()
	refused = make([]error, len(reports))
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{LeakedAfter: 2 * time.Second})
		for i, m := range reports {
			a := l.dial().send(m)
			for a.acked < a.sequence && refused[i] == nil {
				if !a.take() {
					refused[i] = a.end
				}
			}
		}
		time.Sleep(10 * time.Second)
		out = l.reported()
	})
	return out, refused
}

// An attacker with a stolen agent token can put any strings into a report. None of them may run
// a command of a person who acts on the results, or control that person's terminal. No owner
// may be lost because of an odd name.
func TestNoReportRunsACommand(t *testing.T) {
	cage := canary.New(t)
	poisoned, fields := map[string]bool{}, textFields()
	for _, payload := range []string{"$(:>c)", "';:>c;'", "--evil=1", "x\n:>c\n\x1b[2J\u202e"} {
		reports, keys := []*pb.ReportRequest{everything(0)}, []string{""}
		for {
			m := everything(len(reports))
			key := poison(m.ProtoReflect(), len(reports)-1, payload)
			if key == "" {
				break
			}
			reports, keys = append(reports, m), append(keys, key)
			poisoned[key] = true
		}
		got, refused := reportAll(t, reports)
		well := got.owners[nodeName(0)]
		for _, kind := range []string{"in-use-unallocated", "booked-elsewhere", "leaked", "ranges-overlap", "ipam-unreadable", "intended-not-observed"} {
			if !slices.ContainsFunc(got.findings[nodeName(0)], func(f *pb.Finding) bool { return f.GetKind() == kind }) {
				t.Errorf("got findings %v, want %s, too", got.findings[nodeName(0)], kind)
			}
		}
		for i, key := range keys[1:] {
			i++
			name, bytesField := nodeName(i), fields[key].Kind() == protoreflect.BytesKind
			if err := refused[i]; err != nil {
				must := slices.Contains([]string{"Hello.node", "Hello.boot_id", "Hello.netns", "LinkRecord.name"}, key)
				if !must && !bytesField || status.Code(err) != codes.InvalidArgument {
					t.Errorf("got %v of %q in %s, want it corrected", err, payload, key)
				}
				cage.Readable(key, err.Error())
				continue
			}
			if !bytesField && got.owners[name] != well {
				t.Errorf("got %d owners with %q in %s, want all %d", got.owners[name], payload, key, well)
			}
			corrected, err := report.Check(proto.CloneOf(reports[i]))
			invalid := corrected[key] > 0
			if err != nil || !bytesField && !advice.Printable(payload) && !invalid {
				t.Errorf("got %v, %v of %q in %s, want it corrected", corrected, err, payload, key)
			}
			problems := strings.Join(got.nodes[name].GetProblems(), "\n")
			if named := strings.Contains(problems, key+" ("); invalid != named && key != "Workload.name" {
				t.Errorf("got problems %q with %q in %s, want it named: %v", problems, payload, key, invalid)
			}
			var b bytes.Buffer
			if err := show.FixPlan(&b, got.findings[name], show.Origin{
				Now:   got.made,
				Nodes: []*pb.Node{{Name: name, BootId: cage.Boot, Netns: cage.Netns}}, // without it the plan would run nothing here
			}); err != nil {
				t.Fatal(err)
			}
			plan := b.String()
			cage.Readable(key, plan)
			cage.Parses(plan)
			for _, arguments := range []string{"", " cluster", " node " + name} {
				cage.Add("set --" + arguments + "\n" + plan)
			}
		}
		for _, m := range got.messages {
			texts(m.ProtoReflect(), func(f protoreflect.FieldDescriptor, text string) {
				switch f.FullName() {
				case "ipwitness.v1.Fix.command", "ipwitness.v1.Action.command":
					cage.Script(text)
					cage.Readable("a command", text)
					return
				case "ipwitness.v1.Action.text":
					cage.Advice(text)
				}
				if !advice.Printable(text) {
					t.Errorf("%q in %s: got %q, want nothing that cannot be printed", payload, f.FullName(), text)
				}
			})
		}
		cage.Readable("what is shown", got.shown)
		if script := cage.Sings(); script != "" {
			t.Errorf("got a command that executes %q:\n%s", payload, script)
		}
	}
	for key := range fields {
		if !poisoned[key] {
			t.Errorf("there is no %s in the report", key)
		}
	}
}

// texts calls each for all strings of a message.
func texts(m protoreflect.Message, each func(f protoreflect.FieldDescriptor, text string)) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				each(f, k.String())
				each(f, v.String())
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				if f.Message() != nil {
					texts(v.List().Get(i).Message(), each)
				} else if f.Kind() == protoreflect.StringKind {
					each(f, v.List().Get(i).String())
				}
			}
		case f.Message() != nil:
			texts(v.Message(), each)
		case f.Kind() == protoreflect.StringKind:
			each(f, v.String())
		}
		return true
	})
}
