package report

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// counters count the records that agents send.
type counters struct {
	received  *prometheus.CounterVec
	corrected prometheus.Counter
}

func newCounters() counters {
	c := counters{
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ipwitness_aggregator_records_total",
			Help: "Records received from agents: additions, changes and ends.",
		}, []string{"record"}),
		corrected: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ipwitness_aggregator_corrected_texts_total",
			Help: "Malformed strings in reports of agents. Characters that are not allowed were replaced, or the string was dropped.",
		}),
	}
	for _, record := range facts.RecordKinds {
		c.received.WithLabelValues(record)
	}
	return c
}

// countRecords counts the records of a message.
func (c *counters) countRecords(r *pb.ReportRequest) {
	counts := [len(facts.RecordKinds)]int{
		len(r.GetNamespaces()), len(r.GetLinks()), len(r.GetInterfaces()), len(r.GetClaims()), len(r.GetPools()), len(r.GetAllocations()),
	}
	for i, n := range counts {
		if n > 0 {
			c.received.WithLabelValues(facts.RecordKinds[i]).Add(float64(n))
		}
	}
}
