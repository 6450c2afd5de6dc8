package export

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/secure"
)

// An otlp gets a log record for each transition (OTLP/HTTP with binary protobuf). The SDK of
// OpenTelemetry is not used, because its exporters drop records that a receiver does not accept in
// time. The names of attributes are those of the semantic conventions 1.43.
type otlp struct {
	*client
	header   http.Header
	resource *resourcepb.Resource
	version  string
	clock    func() time.Time
}

func newOTLP(cfg *Config, files secure.Files) (*receiver, error) {
	// A variable for logs takes precedence over the one for all signals.
	if cfg.Environment == nil {
		cfg.Environment = func(string) string { return "" }
	}
	value := func(name string) string {
		if v := cfg.Environment("OTEL_EXPORTER_OTLP_LOGS_" + name); v != "" {
			return v
		}
		return cfg.Environment("OTEL_EXPORTER_OTLP_" + name)
	}
	if ca, cert, key := value("CERTIFICATE"), value("CLIENT_CERTIFICATE"), value("CLIENT_KEY"); ca+cert+key != "" {
		files = secure.Files{CA: cmp.Or(ca, cfg.CA), Cert: cert, Key: key}
		if _, err := tlsConfig(files); err != nil {
			return nil, fmt.Errorf("variables OTEL_EXPORTER_OTLP_…: %w", err)
		}
	}
	header, err := headers(value("HEADERS"))
	if err != nil {
		return nil, err
	}
	header.Set("Content-Type", "application/x-protobuf")
	c, err := newClient(cfg.OTLP, "/v1/logs", files, cfg.Log, help{url: "otlp-endpoint", credentials: "the variable OTEL_EXPORTER_OTLP_HEADERS, as in authorization=Bearer%20TOKEN"})
	if err != nil {
		return nil, err
	}
	o := &otlp{
		client: c, header: header, version: cfg.Version, clock: cfg.Clock,
		resource: &resourcepb.Resource{Attributes: attributes(
			"service.name", "ipwitness", "service.version", cfg.Version, "k8s.cluster.name", cfg.Cluster)},
	}
	return &receiver{client: c, atOnce: 512, deliver: o.deliver}, nil
}

func headers(list string) (http.Header, error) {
	h := make(http.Header)
	for one := range strings.SplitSeq(list, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		name, text, found := strings.Cut(one, "=")
		value, err := url.PathUnescape(strings.TrimSpace(text))
		if err != nil || !found {
			return nil, fmt.Errorf("variable OTEL_EXPORTER_OTLP_HEADERS: it must be a list like authorization=Bearer%%20TOKEN,x-tenant=a")
		}
		h.Set(strings.TrimSpace(name), value)
	}
	return h, nil
}

func (o *otlp) deliver(ctx context.Context, some []transition) error {
	now := uint64(o.clock().UnixNano())
	logs := &logspb.ScopeLogs{Scope: &commonpb.InstrumentationScope{Name: "github.com/ipwitness/ipwitness", Version: o.version}}
	for i := range some {
		r := logRecord(&some[i])
		r.ObservedTimeUnixNano = now
		logs.LogRecords = append(logs.LogRecords, r)
	}
	body, err := proto.Marshal(&collectorpb.ExportLogsServiceRequest{
		ResourceLogs: []*logspb.ResourceLogs{{Resource: o.resource, ScopeLogs: []*logspb.ScopeLogs{logs}}},
	})
	if err != nil {
		return err
	}
	raw, err := o.post(ctx, o.header.Clone(), body)
	if err != nil {
		return err
	}
	// The rest of a request of which some records are refused must not be sent again.
	var answer collectorpb.ExportLogsServiceResponse
	if err := proto.Unmarshal(raw, &answer); err != nil {
		return nil // it is accepted; some receivers answer with JSON or with nothing
	}
	if n := answer.GetPartialSuccess().GetRejectedLogRecords(); n > 0 {
		return &answerError{accepted: true, refused: int(n), text: shown([]byte(answer.GetPartialSuccess().GetErrorMessage()))}
	}
	return nil
}

func logRecord(t *transition) *logspb.LogRecord {
	r := &logspb.LogRecord{
		TimeUnixNano: uint64(t.at.UnixNano()), EventName: "ipwitness." + t.name, SeverityNumber: logspb.SeverityNumber_SEVERITY_NUMBER_INFO,
		Attributes: attributes("log.record.uid", t.id, "ipwitness.address", address(t.Event)),
	}
	add := func(more ...string) { r.Attributes = append(r.Attributes, attributes(more...)...) }
	var text string
	switch {
	case t.GetConflict() != nil:
		c := t.GetConflict()
		text = c.GetSummary()
		switch c.GetState() {
		case pb.Conflict_CONFIRMED:
			r.SeverityNumber = logspb.SeverityNumber_SEVERITY_NUMBER_ERROR
		case pb.Conflict_SUSPECTED:
			r.SeverityNumber = logspb.SeverityNumber_SEVERITY_NUMBER_WARN
		default:
		}
		add("ipwitness.conflict.id", c.GetId(), "ipwitness.conflict.state", strings.ToLower(c.GetState().String()),
			"ipwitness.conflict.cause", c.GetCause(), "ipwitness.conflict.rule", c.GetRule(), "ipwitness.scope", c.GetScope().GetName(),
			"ipwitness.runbook", c.GetRunbook())
		r.Attributes = append(r.Attributes, &commonpb.KeyValue{
			Key: "ipwitness.conflict.episode", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: int64(c.GetEpisode())}},
		}, owners(c.GetOwners()))
	case t.GetFinding() != nil:
		f := t.GetFinding()
		text = f.GetSummary()
		if t.GetType() != pb.Watch_REMOVED {
			switch f.GetSeverity() {
			case pb.Finding_CRITICAL:
				r.SeverityNumber = logspb.SeverityNumber_SEVERITY_NUMBER_ERROR
			case pb.Finding_WARNING:
				r.SeverityNumber = logspb.SeverityNumber_SEVERITY_NUMBER_WARN
			default:
			}
		}
		add("ipwitness.finding.id", f.GetId(), "ipwitness.finding.kind", f.GetKind(),
			"ipwitness.finding.severity", strings.ToLower(f.GetSeverity().String()), "ipwitness.runbook", f.GetRunbook())
		r.Attributes = append(r.Attributes, owners(f.GetOwners()))
		if len(f.GetNodes()) == 1 {
			add("host.name", f.GetNodes()[0])
		}
	case t.GetNode() != nil:
		n := t.GetNode()
		live := n.GetState() == pb.Node_LIVE
		text = explain.Text("node/connected", "node", n.GetName())
		if !live {
			text = explain.Text("node/disconnected", "node", n.GetName())
			r.SeverityNumber = logspb.SeverityNumber_SEVERITY_NUMBER_WARN
		}
		add("host.name", n.GetName(), "ipwitness.node.state", strings.ToLower(n.GetState().String()))
	default:
		o := t.GetOwner()
		how := "changed"
		switch t.GetType() {
		case pb.Watch_ADDED:
			how = "added"
		case pb.Watch_REMOVED:
			how = "removed"
		}
		text = explain.OwnerChanged(how, o.GetAddress(), o.GetWorkload().GetNamespace(), o.GetWorkload().GetName(), o.GetNode())
		r.Attributes = append(r.Attributes, ownerAttributes(o)...)
	}
	r.SeverityText = strings.TrimPrefix(r.GetSeverityNumber().String(), "SEVERITY_NUMBER_")
	r.Body = stringValue(text)
	return r
}

func ownerAttributes(o *pb.Owner) []*commonpb.KeyValue {
	w := o.GetWorkload()
	list := attributes(
		"host.name", o.GetNode(), "network.interface.name", o.GetInterface(), "container.id", w.GetContainerId(),
		"ipwitness.mac", o.GetMac(), "ipwitness.owner.state", strings.ToLower(o.GetState().String()), "ipwitness.scope", o.GetScope().GetName(),
		"ipwitness.workload.kind", strings.ToLower(w.GetKind().String()), "ipwitness.virtual_machine", w.GetVirtualMachine())
	if w.GetKind() != pb.Workload_POD {
		return append(list, attributes("ipwitness.workload.name", w.GetName())...)
	}
	return append(list, attributes(
		"k8s.node.name", o.GetNode(), "k8s.namespace.name", w.GetNamespace(), "k8s.pod.name", w.GetName(), "k8s.pod.uid", w.GetUid(),
		controllerAttributes[w.GetController().GetKind()], w.GetController().GetName())...)
}

var controllerAttributes = map[string]string{
	"Deployment": "k8s.deployment.name", "ReplicaSet": "k8s.replicaset.name", "StatefulSet": "k8s.statefulset.name",
	"DaemonSet": "k8s.daemonset.name", "Job": "k8s.job.name", "CronJob": "k8s.cronjob.name",
}

// owners returns the attribute of the owners of a conflict or a finding.
func owners(all []*pb.Owner) *commonpb.KeyValue {
	list := &commonpb.ArrayValue{}
	for _, o := range all {
		list.Values = append(list.Values, &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: &commonpb.KeyValueList{Values: ownerAttributes(o)}}})
	}
	return &commonpb.KeyValue{Key: "ipwitness.owners", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: list}}}
}

// attributes returns attributes, given as names and values, without those that have no name or value.
func attributes(pairs ...string) (list []*commonpb.KeyValue) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] != "" && pairs[i+1] != "" {
			list = append(list, &commonpb.KeyValue{Key: pairs[i], Value: stringValue(pairs[i+1])})
		}
	}
	return list
}

func stringValue(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
}
