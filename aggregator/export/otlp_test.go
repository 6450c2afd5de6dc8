package export

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// text returns an attribute.
func text(list []*commonpb.KeyValue, name string) string {
	for _, one := range list {
		if one.GetKey() == name {
			return one.GetValue().GetStringValue()
		}
	}
	return ""
}

// An OpenTelemetry receiver gets a log record for each transition, with the attributes of the semantic
// conventions, and the headers of the variables.
func TestLogRecords(t *testing.T) {
	h := newHook(t)
	b := newBench(t, Settings{OTLP: h.URL + "/otlp", Environment: func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20t0ken,x-tenant=a", "OTEL_EXPORTER_OTLP_LOGS_HEADERS": ""}[name]
	}})
	b.state()
	one := b.conflict(1)
	b.changed(one)
	b.must(b.Feed(pb.Event_OWNER).Changed(&journal.Change{At: b.add(time.Second), Type: pb.Watch_ADDED, ID: "o", Owner: one.GetOwners()[0]}))
	b.must(b.Feed(pb.Event_NODE).Changed(&journal.Change{At: b.add(time.Second), Type: pb.Watch_UPDATED, Node: &pb.Node{Name: "n1", State: pb.Node_DISCONNECTED}}))
	b.found(pb.Watch_ADDED, &pb.Finding{Kind: "leaked", Id: "f1", Severity: pb.Finding_CRITICAL, Address: "10.0.0.9", Nodes: []string{"n1"}})
	var records []*logspb.LogRecord
	wait.Until(t, "the records", func() bool {
		records = nil
		for _, r := range h.all() {
			if r.path != "/otlp/v1/logs" || r.header.Get("Authorization") != "Bearer t0ken" || r.header.Get("X-Tenant") != "a" || r.header.Get("Content-Type") != "application/x-protobuf" {
				t.Fatalf("got %s with %v", r.path, r.header)
			}
			var q collectorpb.ExportLogsServiceRequest
			b.must(proto.Unmarshal(r.body, &q))
			for _, of := range q.GetResourceLogs() {
				if a := of.GetResource().GetAttributes(); text(a, "service.name") != "ipwitness" || text(a, "k8s.cluster.name") != "prod" || text(a, "service.version") != "1.2.3" {
					t.Errorf("got resource %v", a)
				}
				for _, scope := range of.GetScopeLogs() {
					records = append(records, scope.GetLogRecords()...)
				}
			}
		}
		return len(records) == 4
	})
	for i, want := range []struct {
		name, severity string
		attributes     map[string]string
	}{
		{"ipwitness.conflict.confirmed", "ERROR", map[string]string{"ipwitness.address": "10.0.0.1", "ipwitness.conflict.cause": "static-address", "ipwitness.conflict.state": "confirmed"}},
		{"ipwitness.owner.added", "INFO", map[string]string{
			"ipwitness.address": "10.0.0.1", "k8s.pod.name": "web", "k8s.namespace.name": "shop", "k8s.pod.uid": "uid1", "k8s.node.name": "n1",
			"k8s.deployment.name": "web", "container.id": "abc", "network.interface.name": "eth0", "host.name": "n1", "ipwitness.mac": "02:00:00:00:00:01",
		}},
		{"ipwitness.node.disconnected", "WARN", map[string]string{"host.name": "n1"}},
		{"ipwitness.finding.detected", "ERROR", map[string]string{"ipwitness.finding.kind": "leaked", "ipwitness.address": "10.0.0.9", "host.name": "n1"}},
	} {
		r := records[i]
		if r.GetEventName() != want.name || r.GetSeverityText() != want.severity || r.GetTimeUnixNano() == 0 || text(r.GetAttributes(), "log.record.uid") == "" {
			t.Errorf("got %v, want %s with %s", r, want.name, want.severity)
		}
		if r.GetBody().GetStringValue() == "" && r.GetEventName() != "ipwitness.finding.detected" {
			t.Errorf("got no body of %s", want.name)
		}
		for name, value := range want.attributes {
			if got := text(r.GetAttributes(), name); got != value {
				t.Errorf("attribute %s of %s: got %q, want %q", name, want.name, got, value)
			}
		}
	}
}

// Records that a receiver refuses are counted and not sent again.
func TestRefusedLogRecords(t *testing.T) {
	answer, err := proto.Marshal(&collectorpb.ExportLogsServiceResponse{
		PartialSuccess: &collectorpb.ExportLogsPartialSuccess{RejectedLogRecords: 1, ErrorMessage: "too old"},
	})
	if err != nil {
		t.Fatal(err)
	}
	requests := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests <- struct{}{}
		_, _ = w.Write(answer)
	}))
	t.Cleanup(server.Close)
	b := newBench(t, Settings{OTLP: server.URL})
	b.state(b.conflict(1))
	wait.Until(t, "the count", func() bool { return b.stats().Refused == 1 })
	b.changed(b.conflict(2))
	wait.Until(t, "the count", func() bool { return b.stats().Refused == 2 })
	if s := b.stats(); s.Sent != 0 || s.Failures != 0 || len(requests) != 2 {
		t.Errorf("got %+v with %d requests, want two", s, len(requests))
	}
}

// Variables for TLS that cannot be used are errors at the start.
func TestEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_CERTIFICATE": "/does/not/exist", "OTEL_EXPORTER_OTLP_LOGS_CLIENT_KEY": "/does/not/exist", "OTEL_EXPORTER_OTLP_HEADERS": "Bearer",
	} {
		_, err := New(Config{Clock: time.Now, Settings: Settings{OTLP: "https://192.0.2.1:4318", Environment: func(n string) string {
			if n == name {
				return value
			}
			return ""
		}}})
		if err == nil {
			t.Errorf("got no error for %s=%s", name, value)
		}
	}
}
