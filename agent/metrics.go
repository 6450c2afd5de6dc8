package agent

import (
	"github.com/prometheus/client_golang/prometheus"
)

// collector reads the agent's metrics when they are scraped.
type collector struct {
	agent *Agent
}

var (
	framesDesc = prometheus.NewDesc("ipwitness_agent_frames_total",
		"Frames that the observer inspected, by protocol and result. Frames with an unparsed_… result were not read to the end: an attacker could hide claims in them.",
		[]string{"protocol", "result"}, nil)
	lostDesc = prometheus.NewDesc("ipwitness_agent_lost_events_total",
		"Lost events, by source. netlink: the agent has listed the state again. neighbours: the agent has read the neighbour tables again. inotify: the agent has read all files of IPAM again. netlink_malformed: messages that could not be parsed. ringbuf: frames that found the ring buffer full; the next frame with the same binding is reported. port_full: claims of frames that were rejected or evicted because the table is full.",
		[]string{"source"}, nil)
	interfacesDesc = prometheus.NewDesc("ipwitness_agent_interfaces",
		"Interfaces that the observer is attached to, by attach mode.",
		[]string{"mode"}, nil)
	unobservedDesc = prometheus.NewDesc("ipwitness_agent_interfaces_unobserved",
		"Interfaces that the observer could not be attached to: frames that enter there are not seen.", nil, nil)
	floodingDesc = prometheus.NewDesc("ipwitness_agent_interfaces_flooding",
		"Interfaces through which more new bindings arrive than the agent accepts; 'ipwitness nodes' names them and the workloads behind them.", nil, nil)
	sourceUpDesc = prometheus.NewDesc("ipwitness_agent_source_up",
		"1 if the agent can use a source of evidence, else 0: wire (frames; absent with --wire off), addresses (inside network namespaces, by netlink).",
		[]string{"source"}, nil)
	claimsDesc = prometheus.NewDesc("ipwitness_agent_claims",
		"Claims in the agent's table.", nil, nil)
	connectedDesc = prometheus.NewDesc("ipwitness_agent_report_connected",
		"1 while all aggregators of the agent are connected and answer.", nil, nil)
	aggregatorsDesc = prometheus.NewDesc("ipwitness_agent_aggregators",
		"Aggregators of the agent, by state; connected aggregators receive its reports and answer. The log names the others.",
		[]string{"state"}, nil)
	criCallsDesc = prometheus.NewDesc("ipwitness_agent_cri_calls_total",
		"Calls to the container runtime (CRI), by method and result.",
		[]string{"method", "result"}, nil)
	criConnectedDesc = prometheus.NewDesc("ipwitness_agent_cri_connected",
		"1 while a container runtime answers the agent.", nil, nil)
	problemsDesc = prometheus.NewDesc("ipwitness_agent_problems",
		"Problems of the agent on this node; the log and 'ipwitness nodes' describe them.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		framesDesc, lostDesc, interfacesDesc, unobservedDesc, floodingDesc, sourceUpDesc, claimsDesc,
		connectedDesc, aggregatorsDesc, criCallsDesc, criConnectedDesc, problemsDesc,
	} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	a := c.agent
	problems := a.table.Problems()
	modes := map[string]float64{"tcx": 0, "clsact": 0}
	unobserved, flooding := 0, 0
	if w := a.wire.Load(); w != nil {
		ports, refused := w.Ports()
		unobserved = len(refused)
		flooding = w.Flooding()
		for _, p := range ports {
			modes[p.GetMode()]++
		}
		for _, n := range w.Counters() {
			ch <- prometheus.MustNewConstMetric(framesDesc, prometheus.CounterValue, float64(n.Frames), n.Protocol, n.Result)
		}
		ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(w.Lost()), "ringbuf")
	}
	for mode, n := range modes {
		ch <- prometheus.MustNewConstMetric(interfacesDesc, prometheus.GaugeValue, n, mode)
	}
	ch <- prometheus.MustNewConstMetric(unobservedDesc, prometheus.GaugeValue, float64(unobserved))
	ch <- prometheus.MustNewConstMetric(floodingDesc, prometheus.GaugeValue, float64(flooding))
	if sources := a.sources.Load(); sources != nil {
		for source, up := range *sources {
			ch <- prometheus.MustNewConstMetric(sourceUpDesc, prometheus.GaugeValue, up, source)
		}
	}
	ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(a.lostNetlink.Load()), "netlink")
	ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(a.malformed.Load()), "netlink_malformed")
	ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(a.lostNeighbours.Load()), "neighbours")
	ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(a.ipam.LostEvents()), "inotify")
	held, leftOut := a.table.Size()
	ch <- prometheus.MustNewConstMetric(claimsDesc, prometheus.GaugeValue, float64(held))
	ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(leftOut), "port_full")
	ch <- prometheus.MustNewConstMetric(problemsDesc, prometheus.GaugeValue, float64(problems))
	calls, answers := a.runtime.Counters()
	for c, n := range calls {
		ch <- prometheus.MustNewConstMetric(criCallsDesc, prometheus.CounterValue, float64(n), c.Method, c.Result)
	}
	ch <- prometheus.MustNewConstMetric(criConnectedDesc, prometheus.GaugeValue, answers)
	connected, disconnected := a.aggregators()
	all := 0.0
	if connected > 0 && disconnected == 0 {
		all = 1
	}
	ch <- prometheus.MustNewConstMetric(connectedDesc, prometheus.GaugeValue, all)
	ch <- prometheus.MustNewConstMetric(aggregatorsDesc, prometheus.GaugeValue, float64(connected), "connected")
	ch <- prometheus.MustNewConstMetric(aggregatorsDesc, prometheus.GaugeValue, float64(disconnected), "disconnected")
}
