package live

import (
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// related returns the objects of the Kubernetes API that are related to a conflict.
func (s *Converter) related(c *pb.Conflict) []*pb.Related {
	if c.GetState() == pb.Conflict_RESOLVED {
		return nil
	}
	return s.Kubernetes.Related(c)
}

// kubernetesOf returns the information from the Kubernetes API about a conflict. It is empty if the
// conflict is resolved.
func (s *Converter) kubernetesOf(c *verdict.Conflict, related []*pb.Related) explain.Kubernetes {
	if !c.Active() {
		return explain.Kubernetes{}
	}
	says := explain.Kubernetes{
		Live: s.Kubernetes.Status().GetState() == pb.Kubernetes_LIVE, Events: s.Kubernetes.EventsHeard(), Whole: len(related) < kube.MostRelated,
	}
	for _, r := range related {
		says.Related = append(says.Related, explain.Related{
			Kind: r.GetKind(), Namespace: r.GetNamespace(), Name: r.GetName(), Reason: r.GetReason(), Message: r.GetMessage(), Count: r.GetCount(),
		})
	}
	return says
}
