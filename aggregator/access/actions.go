package access

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Group is the API group of our resources in Kubernetes RBAC.
const Group = "ipwitness.io"

// Action is what a caller wants to do, in terms of RBAC: a verb, and either a resource of
// Group or a path.
type Action struct {
	Verb, Resource, Subresource, Path string
	// report means that only agents may do it.
	report bool
	// open means that all callers may do it.
	open bool
	// operator means that only operators may do it, although it changes nothing.
	operator bool
	// long means that a call is a stream, which may last, and many that it has many questions.
	long, many bool
}

// changes reports whether the action modifies anything.
func (a Action) changes() bool { return a.Verb == "create" }

// operates reports whether only operators may do it.
func (a Action) operates() bool { return a.changes() || a.operator }

func (a Action) String() string {
	switch {
	case a.report:
		return "report"
	case a.Path != "":
		return a.Verb + " " + a.Path
	case a.Subresource != "":
		return a.Verb + " " + a.Resource + "/" + a.Subresource
	}
	return a.Verb + " " + a.Resource
}

// metrics is the action of a scrape by Prometheus.
var metrics = Action{Verb: "get", Path: "/metrics"}

// actions has the action of each gRPC method. REST calls are calls of these methods.
var actions = map[string]Action{
	pb.ReportService_Report_FullMethodName:               {report: true, long: true},
	pb.WitnessService_ListOwners_FullMethodName:          {Verb: "list", Resource: "owners"},
	pb.WitnessService_ResolveOwners_FullMethodName:       {Verb: "list", Resource: "owners", many: true},
	pb.WitnessService_WatchOwners_FullMethodName:         {Verb: "watch", Resource: "owners", long: true},
	pb.WitnessService_Explain_FullMethodName:             {Verb: "get", Resource: "owners"},
	pb.WitnessService_ListConflicts_FullMethodName:       {Verb: "list", Resource: "conflicts"},
	pb.WitnessService_GetConflict_FullMethodName:         {Verb: "get", Resource: "conflicts"},
	pb.WitnessService_WatchConflicts_FullMethodName:      {Verb: "watch", Resource: "conflicts", long: true},
	pb.WitnessService_AcknowledgeConflict_FullMethodName: {Verb: "create", Resource: "conflicts", Subresource: "acknowledge"},
	pb.WitnessService_ListFindings_FullMethodName:        {Verb: "list", Resource: "findings"},
	pb.WitnessService_GetFinding_FullMethodName:          {Verb: "get", Resource: "findings"},
	pb.WitnessService_WatchFindings_FullMethodName:       {Verb: "watch", Resource: "findings", long: true},
	pb.WitnessService_ListIncidents_FullMethodName:       {Verb: "list", Resource: "incidents"},
	pb.WitnessService_GetIncident_FullMethodName:         {Verb: "get", Resource: "incidents"},
	pb.WitnessService_WatchIncidents_FullMethodName:      {Verb: "watch", Resource: "incidents", long: true},
	pb.WitnessService_ListPools_FullMethodName:           {Verb: "list", Resource: "pools"},
	pb.WitnessService_ListNodes_FullMethodName:           {Verb: "list", Resource: "nodes"},
	pb.WitnessService_GetNode_FullMethodName:             {Verb: "get", Resource: "nodes"},
	pb.WitnessService_WatchNodes_FullMethodName:          {Verb: "watch", Resource: "nodes", long: true},
	pb.WitnessService_ListClusters_FullMethodName:        {Verb: "list", Resource: "nodes"},
	pb.WitnessService_ListEvents_FullMethodName:          {Verb: "list", Resource: "events"},
	pb.WitnessService_WatchEvents_FullMethodName:         {Verb: "watch", Resource: "events", long: true},
	pb.WitnessService_Backup_FullMethodName:              {Verb: "get", Resource: "backups", operator: true, long: true},
}

// action returns the action of a method. Reflection is open, because the API's definition is
// public. Health checks are open, because probes have no credentials.
func action(method string) (Action, error) {
	if a, ok := actions[method]; ok {
		return a, nil
	}
	if strings.HasPrefix(method, "/grpc.health.v1.") || strings.HasPrefix(method, "/grpc.reflection.") {
		return Action{open: true}, nil
	}
	return Action{}, status.Errorf(codes.PermissionDenied, "%s cannot be called by anyone", method)
}
