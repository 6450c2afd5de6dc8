package show

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/canary"
)

// steering is a text that controls a terminal and hides its effect.
const steering = "a\x1b[2J\r\u202eb\u009b1m\u200b\U000e0041"

// pour sets every string field of a message to text, including those of nested messages.
func pour(m protoreflect.Message, text string, deep int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		value := protoreflect.ValueOfString(text)
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(value.MapKey(), value)
		case f.Kind() == protoreflect.StringKind && f.IsList():
			m.Mutable(f).List().Append(value)
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, value)
		case f.Message() == nil || deep == 0 || f.Message().ParentFile().Package() != m.Descriptor().ParentFile().Package():
		case f.IsList():
			pour(m.Mutable(f).List().AppendMutable().Message(), text, deep-1)
		default:
			pour(m.Mutable(f).Message(), text, deep-1)
		}
	}
}

// No data from a server makes the output control the terminal.
func TestOutputHasNoTerminalControlCodes(t *testing.T) {
	o, c, f, n, p, e := &pb.Owner{}, &pb.Conflict{}, &pb.Finding{}, &pb.Node{}, &pb.Pool{}, &pb.ExplainResponse{}
	k := &pb.Kubernetes{}
	for _, m := range []protoreflect.ProtoMessage{o, c, f, n, p, e, k} {
		pour(m.ProtoReflect(), steering, 4)
	}
	o.Workload.Kind = pb.Workload_POD
	c.State, k.State = pb.Conflict_CONFIRMED, pb.Kubernetes_LIVE
	changes := []*pb.Event{
		{Kind: pb.Event_OWNER, Owner: o, Time: at(4)},
		{Kind: pb.Event_CONFLICT, Conflict: c, Time: at(3)},
		{Kind: pb.Event_FINDING, Finding: f, Time: at(2)},
		{Kind: pb.Event_NODE, Node: n, Time: at(1)},
	}
	var b bytes.Buffer
	watch := func(w *Watch[*pb.Owner]) error {
		if err := w.Event(pb.Watch_ADDED, o, now); err != nil {
			return err
		}
		return w.Event(pb.Watch_BOOKMARK, nil, now)
	}
	for name, show := range map[string]func() error{
		"owners": func() error {
			return Owners(&b, []*pb.Owner{o}, NewMarks([]*pb.Owner{o}, []*pb.Conflict{c}), wide, now)
		},
		"conflicts":       func() error { return conflictTable(&b, []*pb.Conflict{c}, wide) },
		"conflict":        func() error { return Conflict(&b, c, piped, now) },
		"findings":        func() error { return Findings(&b, []*pb.Finding{f}, wide, now) },
		"finding":         func() error { return Finding(&b, f, piped, now) },
		"nodes":           func() error { return Nodes(&b, &pb.ListNodesResponse{Nodes: []*pb.Node{n}, Kubernetes: k}, wide, now) },
		"pools":           func() error { return Pools(&b, []*pb.Pool{p}, wide) },
		"explain":         func() error { return Explain(&b, e, piped, now) },
		"ack":             func() error { return Acknowledged(&b, c, piped, now) },
		"json":            func() error { return Message(&b, FormatJSON, c) },
		"yaml":            func() error { return Message(&b, FormatYAML, c) },
		"event":           func() error { return Event(&b, FormatJSON, "ADDED", Field{"owner", o}) },
		"history":         func() error { return NewHistory(&b, FormatWide, piped, now).Events(changes) },
		"history as JSON": func() error { return NewHistory(&b, FormatJSON, piped, now).Events(changes) },
		"history as YAML": func() error { return NewHistory(&b, FormatYAML, piped, now).Events(changes) },
		"lines":           func() error { _, err := b.WriteString(FindingLine(f) + ConflictLine(c)); return err },
		"watch":           func() error { return watch(NewWatch(&b, OwnerKind, wide)) },
		"live": func() error {
			l := NewLive(&b, piped)
			l.Start("v1", n, "", "")
			l.Owner(&pb.WatchOwnersResponse{Type: pb.Watch_BOOKMARK}, now)
			l.Owner(&pb.WatchOwnersResponse{Type: pb.Watch_ADDED, Owner: o}, now)
			l.Conflict(&pb.WatchConflictsResponse{Type: pb.Watch_ADDED, Conflict: c}, now.Add(time.Second))
			return l.Err()
		},
		"plan": func() error {
			return FixPlan(&b, []*pb.Finding{f}, Origin{Server: steering, Nodes: []*pb.Node{n}, Now: now})
		},
	} {
		b.Reset()
		if err := show(); err != nil {
			t.Fatal(err)
		}
		if b.Len() == 0 {
			t.Errorf("%s: got no output", name)
		}
		canary.New(t).Readable(name, b.String())
	}
	b.Reset()
	if err := Message(&b, FormatJSON, o); err != nil {
		t.Fatal(err)
	}
	var read struct{ Node string }
	if err := json.Unmarshal(b.Bytes(), &read); err != nil || read.Node != steering {
		t.Errorf("got %q, %v, want JSON with the original string", read.Node, err)
	}
	b.Reset()
	if err := Message(&b, FormatYAML, o); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b.Bytes(), &read); err != nil || !strings.HasPrefix(read.Node, "a\uFFFD") {
		t.Errorf("got %q, %v, want YAML", read.Node, err)
	}
}

func TestFixPlanWithholdsUnprintableCommands(t *testing.T) {
	cage := canary.New(t)
	for _, command := range []string{"kubectl delete pod a\r", "kubectl delete pod a\u202eb", "echo '\x1b[2J'", "rm '\uFFFF'"} {
		f := &pb.Finding{Fixes: []*pb.Fix{{Node: "n1", What: "Delete it.", Command: command}}}
		var b bytes.Buffer
		if err := FixPlan(&b, []*pb.Finding{f}, Origin{Nodes: []*pb.Node{{Name: "n1"}}, Now: now}); err != nil {
			t.Fatal(err)
		}
		word, _, _ := strings.Cut(command, " ")
		if strings.Contains(b.String(), word+" delete") || strings.Contains(b.String(), "rm ") || !strings.Contains(b.String(), "withheld") {
			t.Errorf("got\n%s\nwant %q withheld", b.String(), command)
		}
		cage.Readable("plan", b.String())
	}
	// The texts of a plan outside its commands.
	for _, payload := range canary.Payloads {
		f := &pb.Finding{
			Kind: payload, Id: payload, Address: payload,
			Fixes: []*pb.Fix{{Node: payload, What: payload, Command: "true"}, {Node: payload, What: payload, Command: "false\ntrue", Manual: true}, {What: payload, Command: "true"}},
		}
		var b bytes.Buffer
		n := &pb.Node{Name: payload, BootId: payload, Netns: payload}
		if err := FixPlan(&b, []*pb.Finding{f}, Origin{Server: payload, Nodes: []*pb.Node{n}, Now: now}); err != nil {
			t.Fatal(err)
		}
		cage.Parses(b.String())
		cage.Readable("plan", b.String())
		for _, arguments := range [][]string{nil, {"cluster"}, {"node", payload}} {
			cage.Add(b.String())
			if script := cage.Sings(arguments...); script != "" {
				t.Errorf("got a plan that executes %q:\n%s", payload, script)
			}
		}
	}
}
