package convert

import (
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// related returns what else the Kubernetes API says about a conflict.
func (s *Converter) related(c *pb.Conflict) []*pb.Related {
	if c.GetState() == pb.Conflict_RESOLVED {
		return nil
	}
	return s.Kubernetes.Related(c)
}

// kubernetesOf returns what the Kubernetes API says about a conflict; nothing if the conflict is
// over.
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
