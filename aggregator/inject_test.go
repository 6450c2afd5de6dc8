package aggregator

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ipwitness/ipwitness/aggregator/form"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/canary"
)

// Each field of a report that has text or bytes has a rule: also one that is new.
func TestEachTextOfAReportHasARule(t *testing.T) {
	found := map[string]bool{}
	var walk func(of protoreflect.MessageDescriptor)
	walk = func(of protoreflect.MessageDescriptor) {
		for i := range of.Fields().Len() {
			f := of.Fields().Get(i)
			key := string(of.Name()) + "." + string(f.Name())
			switch {
			case f.Kind() == protoreflect.StringKind, f.Kind() == protoreflect.BytesKind, f.IsMap():
				found[key] = true
				if r, ok := rules[key]; !ok || (f.Kind() == protoreflect.BytesKind) != (r.sizes != nil) {
					t.Errorf("%s has no rule, or one of another kind", key)
				}
			case f.Message() != nil && f.Message().ParentFile().Package() == of.ParentFile().Package():
				walk(f.Message())
			}
		}
	}
	walk((*pb.ReportRequest)(nil).ProtoReflect().Descriptor())
	for key := range rules {
		if !found[key] {
			t.Errorf("there is a rule of %s, and no such field", key)
		}
	}
}

// poison puts a payload in place of the nth text or bytes of a message. It gives the field
// that this is in; empty where there are not so many.
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

// everything is the report of a node where much is wrong, with each text that there is.
func everything(cage *canary.Cage) *pb.ReportRequest {
	a, b := kindPod(2, "a", "10.244.0.5"), kindPod(3, "b", "10.244.0.5")
	a.Namespaces[0].Intended = []*pb.Intended{{Address: "10.244.0.9", Source: "cri", Interface: "eth1"}}
	a.Namespaces[0].Workload.Sources = map[string]string{"uid": "cgroup"}
	a.Namespaces[0].Workload.Process = "pause (12)"
	a.Interfaces[0].Vrf = "red"
	named, process := podVeth(4, "x", "10.244.0.7"), podVeth(5, "x", "10.244.0.7")
	named.Namespaces[0].Workload = &pb.Workload{Kind: pb.Workload_CONTAINER, Name: "lab", Source: "netns"}
	process.Namespaces[0].Workload = &pb.Workload{Kind: pb.Workload_UNKNOWN, Process: "sleep (42)", Source: "process"}
	container, anonymous := podVeth(6, "x", "10.244.0.8"), podVeth(7, "x", "10.244.0.8")
	container.Namespaces[0].Workload = &pb.Workload{Kind: pb.Workload_CONTAINER, Name: "db", ContainerId: "0123456789abcdef", Source: "cgroup"}
	anonymous.Namespaces[0].Workload = &pb.Workload{Kind: pb.Workload_POD, Uid: "0125ec2f-b64a", Source: "cgroup"}
	machine := podVeth(10, "vm", "10.244.0.40")
	machine.Namespaces[0].Workload.VirtualMachine = "db"
	machine.Namespaces[0].Workload.Controller = &pb.Controller{Kind: "VirtualMachineInstance", Name: "db"}
	machine.Namespaces[0].Workload.Phase = "Running"
	outside := announced(4, "10.244.0.41", []byte{2, 9, 9, 9, 9, 9})
	outside.Source = []byte{2, 9, 9, 9, 9, 8}
	tunnel := &pb.ReportRequest{
		Links: []*pb.LinkRecord{{Name: "tunl0", Kind: pb.LinkRecord_UPLINK}},
		Interfaces: []*pb.InterfaceRecord{{
			Namespace: 1, Index: 2, Name: "tunl0", Kind: "ipip", Attachment: pb.InterfaceRecord_OWN, Link: "tunl0", HostInterface: "tunl0", Uplink: true,
		}},
		Claims: []*pb.ClaimRecord{assigned(1, "10.244.0.42"), outside},
	}
	overlapping, unreadable := hostLocal("10.244.0.0/25", pb.Pool_KNOWN), hostLocal("10.9.0.0/24", pb.Pool_UNREADABLE)
	overlapping.Name, overlapping.Network, overlapping.Device = "/var/lib/cni/networks/other", "other", "cni0"
	unreadable.Name, unreadable.Problem = "/var/lib/cni/networks/broken", "it cannot be read"
	h := hello("n1", 1)
	h.BootId, h.Netns = cage.Boot, cage.Netns
	m := snapshot(h, a, b, named, process, container, anonymous, kindPod(8, "c", "10.244.0.30"), kindPod(9, "d", "10.244.0.31"),
		machine, tunnel, kindPod(11, "e", "10.244.0.42"), poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN), overlapping, unreadable),
		given(allocated("10.244.0.5", "sandbox-b"), allocated("10.244.0.31", "sandbox-old"), allocated("10.244.0.20", "sandbox-gone")))
	m.Namespaces[0].Netns = cage.Netns
	m.Status = &pb.StatusRecord{
		Wire: "tcx", Ports: []*pb.Node_Port{{Interface: "eth0", Mode: "tcx"}}, Problems: []string{"something"}, Runtime: "containerd 1.7", CalicoNodename: "other",
	}
	return m
}

// reported is all that an aggregator tells of a report: through its API, and as the command
// line shows it.
type reported struct {
	messages []proto.Message
	shown    string
	plan     string
	owners   int
	findings map[string]bool
	problems []string
}

func (l *lab) reported() (out reported) {
	l.Helper()
	now := time.Now()
	var b bytes.Buffer
	check := func(err error) {
		if err != nil {
			l.Fatal(err)
		}
	}
	owners, conflicts, findings := l.owners(&pb.ListOwnersRequest{}), l.conflicts(), l.findings()
	nodes, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
	check(err)
	pools, err := l.client.ListPools(l.ctx, &pb.ListPoolsRequest{})
	check(err)
	out.messages = append(out.messages, nodes, pools)
	check(show.Owners(&b, owners, true, now))
	check(show.Conflicts(&b, conflicts, true, now))
	check(show.Findings(&b, findings, true, now))
	check(show.Nodes(&b, nodes.GetNodes(), nil, true, now))
	check(show.Pools(&b, pools.GetPools(), true))
	check(show.List(&b, show.FormatJSON, "conflicts", conflicts, nil))
	check(show.List(&b, show.FormatYAML, "findings", findings, nil))
	addresses := map[string]bool{}
	for _, o := range owners {
		out.messages = append(out.messages, o)
		addresses[o.GetAddress()] = true
	}
	for a := range addresses {
		e, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: a})
		check(err)
		out.messages = append(out.messages, e)
		check(show.Explain(&b, e, now))
	}
	for _, c := range conflicts {
		out.messages = append(out.messages, c)
		check(show.Conflict(&b, c, now))
	}
	out.findings = map[string]bool{}
	for _, f := range findings {
		out.messages = append(out.messages, f)
		out.findings[f.GetKind()] = true
		check(show.Finding(&b, f, now))
	}
	out.shown, out.owners, out.problems = b.String(), len(owners), nodes.GetNodes()[0].GetProblems()
	var plan bytes.Buffer
	check(show.FixPlan(&plan, findings, show.Origin{Server: "http://127.0.0.1:9641", Program: "ipwitness", Nodes: nodes.GetNodes(), Now: now}))
	out.plan = plan.String()
	return out
}

// report gives what is told of a report that stands, or why it was refused.
func report(t *testing.T, m *pb.ReportRequest) (out reported, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{LeakedAfter: time.Minute})
		a := l.dial().send(m)
		for a.acked < a.sequence {
			if !a.take() {
				err = a.end
				return
			}
		}
		time.Sleep(2 * time.Minute)
		out = l.reported()
	})
	return out, err
}

// A stolen token of an agent can say anything in a report. Nothing of it runs a command
// of whoever reads what comes of it, or steers a terminal, and nobody is lost who has an
// address because a name is odd.
func TestNoReportRunsACommand(t *testing.T) {
	cage := canary.New(t)
	well, err := report(t, everything(cage))
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"in-use-unallocated", "booked-elsewhere", "leaked", "ranges-overlap", "ipam-unreadable", "intended-not-observed"} {
		if !well.findings[kind] {
			t.Errorf("got findings %v, want %s, too", well.findings, kind)
		}
	}
	poisoned := map[string]bool{}
	for _, payload := range []string{"$(:>c)", "';:>c;'", "--evil=1", "x\n:>c\n\x1b[2J\u202e"} {
		var plans []string
		for n := 0; ; n++ {
			m := everything(cage)
			key := poison(m.ProtoReflect(), n, payload)
			if key == "" {
				break
			}
			poisoned[key] = true
			r := rules[key]
			got, err := report(t, m)
			if err != nil {
				if empty := key == "LinkRecord.name"; !r.must && r.sizes == nil && !empty || status.Code(err) != codes.InvalidArgument {
					t.Errorf("got %v of %q in %s, want it corrected", err, payload, key)
				}
				cage.Readable(key, err.Error())
				continue
			}
			if r.sizes == nil && got.owners != well.owners {
				t.Errorf("got %d owners with %q in %s, want all %d", got.owners, payload, key, well.owners)
			}
			odd := r.sizes == nil && !r.text.Has(payload)
			if said := strings.Contains(strings.Join(got.problems, "\n"), key+" ("); odd != said && key != "Workload.name" {
				t.Errorf("got problems %q with %q in %s, want it named: %v", got.problems, payload, key, odd)
			}
			for _, m := range got.messages {
				texts(m.ProtoReflect(), func(f protoreflect.FieldDescriptor, text string) {
					what := fmt.Sprintf("%q in %s: %s", payload, key, f.FullName())
					if f.Name() == "command" {
						cage.Script(text)
						cage.Readable(what, text)
						return
					}
					if !form.Printable(text) {
						t.Errorf("%s: got %q, want nothing that cannot be printed", what, text)
					}
					if f.FullName() == "ipwitness.v1.Action.text" {
						cage.Advice(text)
					}
				})
			}
			cage.Readable(key, got.shown)
			cage.Readable(key, got.plan)
			cage.Parses(got.plan)
			cage.Add(got.plan)
			plans = append(plans, got.plan)
		}
		if script := cage.Sings("node", "n1"); script != "" {
			t.Errorf("got a command that runs what %q says:\n%s", payload, script)
		}
		for _, arguments := range [][]string{nil, {"cluster"}} {
			for _, plan := range plans {
				cage.Add(plan)
			}
			if script := cage.Sings(arguments...); script != "" {
				t.Errorf("got a plan that runs what %q says, with arguments %q:\n%s", payload, arguments, script)
			}
		}
	}
	for key := range rules {
		if !poisoned[key] {
			t.Errorf("there is no %s in the report", key)
		}
	}
}

// texts gives all texts of a message.
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
