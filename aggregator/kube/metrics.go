package kube

import (
	"github.com/prometheus/client_golang/prometheus"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// collector exports the metrics. Their values are read at each scrape.
type collector struct{ *Cluster }

var (
	descObjects = prometheus.NewDesc("ipwitness_kubernetes_objects",
		"Kubernetes objects in memory; only those services, leases and events that may explain a conflict.", []string{"resource"}, nil)
	descUp = prometheus.NewDesc("ipwitness_kubernetes_up",
		"1 while all pods are known and the Kubernetes API server responds.", nil, nil)
	descLastResponse = prometheus.NewDesc("ipwitness_kubernetes_last_heard_timestamp_seconds",
		"Time of the last response of the Kubernetes API server; 0 for never.", nil, nil)
	descLeader = prometheus.NewDesc("ipwitness_leader",
		"1 while this replica of the aggregator is the leader, which writes Events and exports transitions. No replica leads for a moment after a leader has failed, and while the Kubernetes API is unreachable.", nil, nil)
	descProblems = prometheus.NewDesc("ipwitness_kubernetes_problems",
		"Problems with the Kubernetes API, such as missing permissions or an unreachable server. `ipwitness nodes` describes them.", nil, nil)
	descWritten = prometheus.NewDesc("ipwitness_kubernetes_events_total",
		"Kubernetes Events about conflicts and findings, by result: written, repeated, known (written before), limited (delayed, because the same one was just written), dropped (too many or too old), forbidden, failed.",
		[]string{"result"}, nil)
)

// Describe implements prometheus.Collector.
func (collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descObjects, descUp, descLastResponse, descLeader, descProblems, descWritten} {
		out <- d
	}
}

func (c collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	c.mu.RLock()
	objects := map[string]int{
		"pods": len(c.pods.Records), "nodes": len(c.nodes.Records), "services": len(c.services.Records), "leases": len(c.leases[controlPlaneLease].Records) + len(c.leases[servicesLease].Records),
		"events": len(c.events.warnings.Records) + len(c.events.normal.Records),
	}
	up, problems := 0.0, len(c.health.texts())
	if c.health.state == pb.Kubernetes_LIVE {
		up = 1
	}
	c.mu.RUnlock()
	for resource, n := range objects {
		gauge(descObjects, float64(n), resource)
	}
	gauge(descUp, up)
	leads := 0.0
	if c.election.leads() {
		leads = 1
	}
	gauge(descLeader, leads)
	gauge(descLastResponse, float64(c.lastResponse.Load())/1e9)
	gauge(descProblems, float64(problems))
	for r := range results {
		out <- prometheus.MustNewConstMetric(descWritten, prometheus.CounterValue, float64(c.announcer.counts[r].Load()), r.String())
	}
}
