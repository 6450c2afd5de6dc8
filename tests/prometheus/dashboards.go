package prometheus

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// runbooks is the URL of the pages about causes, findings and alerts.
const runbooks = "https://github.com/ipwitness/ipwitness/blob/main/docs/runbooks/"

// The colours of conflicts, in every panel.
const (
	confirmed = "red"
	suspected = "orange"
)

// one is a panel without a position: rows are filled from left to right.
type one struct {
	width, height int
	Panel
}

// Dashboards returns the dashboards by file name.
func Dashboards() map[string]Dashboard {
	return map[string]Dashboard{
		"overview.json":   overview(),
		"node.json":       nodes(),
		"aggregator.json": aggregator(),
	}
}

func overview() Dashboard {
	// Aggregators of one cluster report the same, so take the maximum of their values.
	most := func(expr string) string { return "sum(max by (cluster) (" + expr + "))" }
	each := func(metric string) string { return "sum by (cluster, instance) (" + metric + ")" }
	unsilenced := func(state string) string {
		return most(each(fmt.Sprintf(`ipwitness_conflicts{state=%q}`, state)) + " - " + each(fmt.Sprintf(`ipwitness_conflicts_acknowledged{state=%q}`, state)))
	}
	return dashboard("ipwitness-overview", "ipwitness / Overview",
		"Duplicate addresses, problems of IPAM, and the usage of its pools.", nil,
		stat(4, "Confirmed conflicts", "Addresses that currently have two or more owners, without acknowledged conflicts.", "short", unsilenced("confirmed"), 1, confirmed),
		stat(4, "Suspected conflicts", "Conflicts that are not confirmed yet. A few seconds are normal.", "short", unsilenced("suspected"), 1, suspected),
		stat(4, "Acknowledged", "Active conflicts that a user has acknowledged.", "short",
			most(each(`ipwitness_conflicts_acknowledged`)), 1, "blue"),
		stat(4, "Findings", "Problems that are not yet conflicts, of all severities.", "short", most(each(`ipwitness_findings`)), 1, "orange"),
		stat(4, "Disconnected nodes", "Nodes whose agent is disconnected, or that should have an agent but none has connected. Their addresses are not seen.", "short",
			`count(min by (cluster, node) (ipwitness_node_up) == 0) or vector(0)`, 1, "red"),
		stat(4, "Owners", "Owners of addresses that are compared, each in the widest scope that applies.", "short",
			most(each(`ipwitness_owners{scope_kind!="none"}`)), 0, "green"),
		table(24, 6, "Conflicts", "Active conflicts that are not acknowledged. The cause links to its runbook.",
			[]string{`max by (cluster, address, owners, scope, state, cause, id) (ipwitness_conflict_detected_timestamp_seconds * on (cluster, job, instance, id) group_right () ipwitness_conflict_info) * 1000`},
			columns("address", "Address", "owners", "Owners", "scope", "Scope", "state", "State", "cause", "Cause", "Value", "Since", "id", "ID", "cluster", "Cluster"),
			since("Since"), page("Cause"), colour("State", map[string]string{"confirmed": confirmed, "suspected": suspected}), wide("Owners", 420)),
		table(24, 8, "Findings", "Problems that are not yet conflicts, critical ones first, at most 1000. The kind links to its runbook.",
			[]string{`max by (cluster, severity, kind, address, holder, node, pool) (ipwitness_finding_detected_timestamp_seconds) * 1000`},
			columns("severity", "Severity", "kind", "Kind", "address", "Address", "holder", "Holder", "node", "Node", "pool", "Pool", "Value", "Since", "cluster", "Cluster"),
			since("Since"), page("Kind"), colour("Severity", map[string]string{"critical": "red", "warning": "orange", "info": "blue"})),
		timeline(24, 8, "Conflicts over time", "Addresses in conflict, and the state of each conflict. At most 30 at a time, confirmed ones first.",
			query(`topk(30, max by (cluster, address, id) (2 * ipwitness_conflict_info{state="confirmed"} or ipwitness_conflict_info{state="suspected"}))`, "{{address}} {{cluster}}"),
			value(1, "suspected", suspected), value(2, "confirmed", confirmed)),
		graph(12, "Conflicts by cause", "Active conflicts, including acknowledged ones.", "short",
			query(`sum by (state, cause) (max by (cluster, state, cause) (ipwitness_conflicts))`, "{{state}} {{cause}}")).
			lines("/^confirmed/", confirmed).lines("/^suspected/", suspected),
		graph(12, "Findings", "Findings over time, by kind.", "short", query(`sum by (kind) (max by (cluster, kind) (ipwitness_findings)) > 0 or on () label_replace(vector(0), "kind", "none", "", "")`, "{{kind}}")),
		table(24, 6, "Pools", "Address pools of IPAM, with their allocated and leaked addresses. A pool has no size if its range is not known.",
			[]string{
				`max by (cluster, ipam, pool, node, network) (ipwitness_ipam_pool_allocated / (ipwitness_ipam_pool_size > 0))`,
				`max by (cluster, ipam, pool, node, network) (ipwitness_ipam_pool_allocated)`,
				`max by (cluster, ipam, pool, node, network) (ipwitness_ipam_pool_size)`,
				`max by (cluster, ipam, pool, node, network) (ipwitness_ipam_pool_leaked)`,
			},
			columns("ipam", "IPAM", "pool", "Pool", "node", "Node", "network", "Network", "Value #A", "Used", "Value #B", "Allocated", "Value #C", "Size", "Value #D", "Leaked", "cluster", "Cluster"),
			gauge("Used")),
		graph(12, "Fullest pools", "The ten pools with the highest usage.", "percentunit",
			query(`topk(10, max by (cluster, ipam, pool, node) (ipwitness_ipam_pool_allocated / (ipwitness_ipam_pool_size > 0)))`, "{{node}} {{pool}} {{cluster}}")),
		graph(12, "Leaked addresses", "Allocated addresses without a holder: the ten pools with most of them.", "short",
			query(`topk(10, max by (cluster, ipam, pool, node) (ipwitness_ipam_pool_leaked))`, "{{node}} {{pool}} {{cluster}}")),
	)
}

func nodes() Dashboard {
	most := func(expr string) string {
		return "topk(10, " + expr + ` and on (cluster, job, instance) ipwitness_agent_claims{node=~"$node"})`
	}
	return dashboard("ipwitness-node", "ipwitness / Nodes",
		"What the agents see, what they miss, and which resources they use.",
		[]Variable{labelOf("node", "Node", "ipwitness_agent_claims{"+ofCluster+"}")},
		stat(4, "Agents", "Agents that are scraped.", "short", `count(ipwitness_agent_claims{node=~"$node"})`, 0, "green"),
		stat(4, "Ports observed", "Interfaces that the observer is attached to.", "short", `sum(ipwitness_agent_interfaces{node=~"$node"})`, 0, "green"),
		stat(4, "Ports not observed", "Interfaces that the observer could not be attached to. Frames that enter there are not seen.", "short",
			`sum(ipwitness_agent_interfaces_unobserved{node=~"$node"})`, 1, "red"),
		stat(4, "Blind sources", "Agents that cannot use a source of evidence: the wire, or addresses inside pods.", "short",
			`count(ipwitness_agent_source_up{node=~"$node"} == 0) or vector(0)`, 1, "red"),
		stat(4, "Problems", "Problems of these nodes. `ipwitness nodes -o wide` describes them.", "short",
			`sum(ipwitness_agent_problems{node=~"$node"})`, 1, "orange"),
		stat(4, "Aggregators not reached", "Missing connections of agents to aggregators.", "short",
			`sum(ipwitness_agent_aggregators{node=~"$node", state="disconnected"})`, 1, "red"),
		table(24, 8, "Nodes", "Each node, disconnected ones first. A node that is not connected may be known only to Kubernetes; a node without further values is not scraped.",
			[]string{
				`min by (cluster, node) (ipwitness_node_up{node=~"$node"})`,
				`max by (cluster, node) (ipwitness_agent_problems{node=~"$node"})`,
				`sum by (cluster, node) (ipwitness_agent_interfaces{node=~"$node"})`,
				`sum by (cluster, node) (ipwitness_agent_interfaces_unobserved{node=~"$node"})`,
				`count by (cluster, node) (ipwitness_agent_source_up{node=~"$node"} == 0) or 0 * max by (cluster, node) (ipwitness_agent_source_up{node=~"$node"})`,
				`sum by (cluster, node) (increase(ipwitness_agent_lost_events_total{node=~"$node"}[1h]))`,
				`max by (cluster, node) (ipwitness_agent_claims{node=~"$node"})`,
				`max by (cluster, node) (process_resident_memory_bytes * on (cluster, job, instance) group_left (node) (0 * ipwitness_agent_claims{node=~"$node"} + 1))`,
				`max by (cluster, node) (ipwitness_node_clock_skew_seconds{node=~"$node"})`,
			},
			columns("Value #A", "Connected", "node", "Node", "Value #B", "Problems", "Value #C", "Ports", "Value #D", "Not observed", "Value #E", "Blind sources",
				"Value #F", "Lost in 1 h", "Value #G", "Claims", "Value #H", "Memory", "Value #I", "Clock ahead", "cluster", "Cluster"),
			colour("Connected", map[string]string{"1": "green yes", "0": "red no"}),
			alarming("Problems", "orange"), alarming("Not observed", "red"), alarming("Blind sources", "red"), alarming("Lost in 1 h", "orange"),
			unit("Lost in 1 h", "short"), unit("Memory", "bytes"), unit("Clock ahead", "s")),
		timeline(24, 8, "Connections over time", "Nodes that were disconnected at some time of the period, and whose addresses were not seen then. At most 30.",
			query(`topk(30, min by (cluster, node) (ipwitness_node_up{node=~"$node"}) and on (cluster, node) min_over_time(ipwitness_node_up{node=~"$node"}[$__range]) == 0) or on () label_replace(0 * count(ipwitness_node_up{node=~"$node"}) + 1, "node", "every node", "", "")`, "{{node}} {{cluster}}"),
			value(0, "disconnected", "red"), value(1, "connected", "green")),
		graph(12, "Ports by attach mode", "TCX runs before other programs (Linux 6.6); a clsact filter may run after another program.", "short",
			query(`sum by (mode) (ipwitness_agent_interfaces{node=~"$node"})`, "{{mode}}"),
			query(`sum(ipwitness_agent_interfaces_unobserved{node=~"$node"})`, "not observed")),
		graph(12, "Frames", "ARP and NDP frames that the observer inspected, by result. Known frames cost almost nothing.", "pps",
			query(`sum by (protocol, result) (rate(ipwitness_agent_frames_total{node=~"$node"}[$__rate_interval]))`, "{{protocol}} {{result}}")),
		graph(12, "Lost events", "netlink and inotify: the agent reads the state again; ringbuf: the next frame repeats the information; port_full: the table is full. Alerts name the node.", "eps",
			query(`sum by (source) (rate(ipwitness_agent_lost_events_total{node=~"$node"}[$__rate_interval]))`, "{{source}}")),
		graph(12, "Claims", "Claims in the agents' tables, one for each address, owner and kind of evidence: the ten nodes with most.", "short",
			query(`topk(10, max by (cluster, node) (ipwitness_agent_claims{node=~"$node"}))`, "{{node}} {{cluster}}")),
		graph(12, "CPU of agents", "CPU usage in cores: the ten agents with most.", "short",
			query(most(`rate(process_cpu_seconds_total[$__rate_interval])`), "{{node}} {{cluster}}")),
		graph(12, "Memory of agents", "Resident memory: the ten agents with most.", "bytes", query(most(`process_resident_memory_bytes`), "{{node}} {{cluster}}")),
		graph(12, "Clock skew", "Difference between the clocks of a node and the aggregator: the ten largest. Verdicts do not depend on it.", "s",
			query(`topk(10, max by (cluster, node) (abs(ipwitness_node_clock_skew_seconds{node=~"$node"})))`, "{{node}} {{cluster}}")),
		graph(12, "Container runtimes", "Agents with and without a connection to a container runtime. Not every node has a runtime.", "short",
			query(`sum(ipwitness_agent_cri_connected{node=~"$node"})`, "answers"),
			query(`count(ipwitness_agent_cri_connected{node=~"$node"} == 0) or vector(0)`, "does not")),
	)
}

func aggregator() Dashboard {
	of := func(expr string) string {
		return expr + ` and on (cluster, job, instance) ipwitness_nodes{state="live"}`
	}
	quantile := func(q string) string {
		return fmt.Sprintf(`histogram_quantile(%s, sum by (le) (rate(ipwitness_detection_seconds_bucket[$__rate_interval])))`, q)
	}
	return dashboard("ipwitness-aggregator", "ipwitness / Aggregator",
		"Ingest, verdict latency, watches, resource usage, and the state of the Kubernetes API.", nil,
		stat(4, "Aggregators", "Aggregators that are scraped.", "short", `count(ipwitness_nodes{state="live"})`, 0, "green"),
		stat(4, "Connected nodes", "Nodes whose agent is connected.", "short", `sum(max by (cluster) (ipwitness_nodes{state="live"}))`, 0, "green"),
		stat(4, "Disconnected nodes", "Nodes whose agent is disconnected.", "short", `sum(max by (cluster) (ipwitness_nodes{state="disconnected"}))`, 1, "red"),
		stat(4, "Nodes without agent", "Nodes of Kubernetes that should have an agent but none has connected.", "short", `sum(max by (cluster) (ipwitness_nodes{state="absent"}))`, 1, "red"),
		stat(4, "Verdicts, p99", "Time from the agent's receipt of a change to the suspicion of a conflict, since the start.", "s",
			`histogram_quantile(0.99, sum by (le) (ipwitness_detection_seconds_bucket))`, 1, "orange"),
		stat(4, "Requests refused", "Requests and report streams that were rejected in the last hour.", "short", `sum(increase(ipwitness_requests_refused_total[1h]))`, 1, "orange"),
		graph(12, "Ingest", "Records that agents send, by type.", "ops",
			query(`sum by (record) (rate(ipwitness_aggregator_records_total[$__rate_interval]))`, "{{record}}")),
		graph(12, "Verdict latency", "Time from the agent's receipt of a change to the suspicion of a conflict. Empty without suspected conflicts.", "s",
			query(quantile("0.5"), "p50"), query(quantile("0.9"), "p90"), query(quantile("0.99"), "p99")),
		graph(12, "Owners", "Owners by the widest scope in which they are compared.", "short", query(`sum by (scope_kind) (max by (cluster, scope_kind) (ipwitness_owners))`, "{{scope_kind}}")),
		graph(12, "Nodes", "Nodes by the state of their agent's connection.", "short", query(`sum by (state) (max by (cluster, state) (ipwitness_nodes))`, "{{state}}")),
		graph(12, "Watches", "Open watches of clients.", "short", query(`sum by (of) (ipwitness_aggregator_watches)`, "{{of}}")),
		graph(12, "IPAM", "Allocated addresses, by IPAM.", "short", query(`sum by (ipam) (max by (cluster, ipam) (ipwitness_ipam_allocations))`, "{{ipam}}")),
		graph(12, "Requests refused", "Requests and report streams that were rejected, by reason.", "reqps",
			query(`sum by (reason) (rate(ipwitness_requests_refused_total[$__rate_interval]))`, "{{reason}}")),
		graph(12, "Records dropped", "Invalid records of agents.", "ops",
			query(`sum by (record) (rate(ipwitness_aggregator_dropped_records_total[$__rate_interval]))`, "{{record}}")),
		graph(12, "CPU of aggregators", "CPU usage in cores.", "short", query(of(`rate(process_cpu_seconds_total[$__rate_interval])`), "{{instance}} {{cluster}}")),
		graph(12, "Memory of aggregators", "Resident memory.", "bytes", query(of(`process_resident_memory_bytes`), "{{instance}} {{cluster}}")),
		graph(8, "Kubernetes API", "1 while the API server is connected and all pods are known. Problems are missing permissions or an unreachable server.", "short",
			query(`min(ipwitness_kubernetes_up)`, "up"), query(`max(ipwitness_kubernetes_problems)`, "problems")),
		graph(8, "Kubernetes objects", "Known objects.", "short", query(`sum by (resource) (max by (cluster, resource) (ipwitness_kubernetes_objects))`, "{{resource}}")),
		graph(8, "Kubernetes Events", "Events about conflicts and findings, by result.", "short",
			query(`sum by (result) (increase(ipwitness_kubernetes_events_total[$__rate_interval]))`, "{{result}}")),
		table(24, 5, "Versions", "Running builds of ipwitness, and the number of processes of each.",
			[]string{`count by (version, revision, goversion, job) (ipwitness_build_info)`},
			columns("job", "Job", "version", "Version", "revision", "Commit", "goversion", "Go", "Value", "Processes")),
	)
}

// ofCluster is added to each query. It selects the clusters that the user chooses, by a label that
// a Prometheus of several clusters adds to its targets. With a single cluster no target has the
// label, and all match.
const ofCluster = `cluster=~"$cluster"`

// ours matches a metric of ipwitness in a query, up to its labels.
var ours = regexp.MustCompile(`\b(ipwitness_\w+)(\{?)`)

// chooseCluster restricts a query to the chosen clusters.
func chooseCluster(expr string) string {
	return ours.ReplaceAllStringFunc(expr, func(found string) string {
		if name, has := strings.CutSuffix(found, "{"); has {
			return name + "{" + ofCluster + ", "
		}
		return found + "{" + ofCluster + "}"
	})
}

// labelOf returns a variable for the values of a label.
func labelOf(name, label, of string) Variable {
	query := "label_values(" + of + ", " + name + ")"
	return Variable{
		Name: name, Label: label, Type: "query", Query: query, Definition: query,
		Datasource: chosen, Refresh: 2, Sort: 1, Multi: true, IncludeAll: true, AllValue: ".*", Current: map[string]any{"text": "All", "value": "$__all"},
	}
}

// dashboard arranges panels in rows, in order.
func dashboard(uid, title, description string, variables []Variable, panels ...one) Dashboard {
	d := Dashboard{
		UID: uid, Title: title, Description: description, Tags: []string{"ipwitness"}, Editable: true, GraphTooltip: 1, Refresh: "30s",
		SchemaVersion: 37, Time: span{"now-6h", "now"},
		Links: []link{{Title: "ipwitness", Type: "dashboards", Tags: []string{"ipwitness"}, AsDropdown: true, IncludeVars: true, KeepTime: true}},
	}
	d.Templating.List = append([]Variable{{
		Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus", Refresh: 1, Current: map[string]any{},
	}, labelOf("cluster", "Cluster", "ipwitness_build_info")}, variables...)
	d.Annotations.List = []Annotation{{
		Name: "Conflicts", Datasource: chosen, Enable: true, IconColor: confirmed, Step: "15s",
		Expr:        chooseCluster(`max by (cluster, address, scope, cause, id) (ipwitness_conflict_info{state="confirmed"})`),
		TitleFormat: "Conflict {{address}}", TextFormat: "{{cause}} in {{scope}} ({{id}})", TagKeys: "cluster",
	}}
	x, y, height := 0, 0, 0
	for i, p := range panels {
		if x+p.width > 24 {
			x, y, height = 0, y+height, 0
		}
		p.ID, p.GridPos = i+1, Grid{H: p.height, W: p.width, X: x, Y: y}
		x, height = x+p.width, max(height, p.height)
		d.Panels = append(d.Panels, p.Panel)
	}
	return d
}

func query(expr, legend string) Question {
	return Question{Expr: expr, LegendFormat: legend, Range: true}
}

// panel returns a panel with queries, which are called A, B and so on.
func panel(width, height int, kind, title, description string, questions []Question, defaults, options map[string]any) one {
	for i := range questions {
		questions[i].RefID, questions[i].Datasource, questions[i].Expr = string(rune('A'+i)), chosen, chooseCluster(questions[i].Expr)
	}
	return one{width, height, Panel{
		Type: kind, Title: title, Description: description, Datasource: chosen, Targets: questions,
		FieldConfig: &fieldConfig{Defaults: defaults, Overrides: []override{}}, Options: options,
	}}
}

// stat returns a panel with one number. From alarm on, unless that is 0, it has the colour.
func stat(width int, title, description, unit, expr string, alarm int, color string) one {
	steps := []map[string]any{{"color": color, "value": nil}}
	if alarm > 0 {
		steps = []map[string]any{{"color": "green", "value": nil}, {"color": color, "value": alarm}}
	}
	return panel(width, 4, "stat", title, description, []Question{{Expr: expr, LegendFormat: title, Instant: true}},
		map[string]any{"unit": unit, "color": map[string]any{"mode": "thresholds"}, "thresholds": map[string]any{"mode": "absolute", "steps": steps}},
		map[string]any{"colorMode": "background", "graphMode": "none", "reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}}})
}

// graph returns a panel with lines over time.
func graph(width int, title, description, unit string, questions ...Question) one {
	return panel(width, 8, "timeseries", title, description, questions,
		map[string]any{"unit": unit, "custom": map[string]any{"axisSoftMin": 0, "fillOpacity": 10, "lineWidth": 1, "showPoints": "never"}},
		map[string]any{"legend": map[string]any{"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": map[string]any{"mode": "multi", "sort": "desc"}})
}

// lines sets the colour of the lines whose legends match a regular expression.
func (o one) lines(pattern, color string) one {
	o.FieldConfig.Overrides = append(o.FieldConfig.Overrides, override{
		Matcher: property{ID: "byRegexp", Options: pattern}, Properties: []property{{ID: "color", Value: map[string]any{"mode": "fixed", "fixedColor": color}}},
	})
	return o
}

// A state is a value of a timeline.
type state struct {
	value       int
	text, color string
}

func value(value int, text, color string) state { return state{value, text, color} }

// timeline returns a panel with a bar for each series, in the colours of its states over time.
func timeline(width, height int, title, description string, question Question, states ...state) one {
	options := map[string]any{}
	for i, s := range states {
		options[fmt.Sprint(s.value)] = map[string]any{"text": s.text, "color": s.color, "index": i}
	}
	return panel(width, height, "state-timeline", title, description, []Question{question},
		map[string]any{
			"unit": "none", "color": map[string]any{"mode": "thresholds"}, "custom": map[string]any{"fillOpacity": 80, "lineWidth": 0},
			"mappings": []map[string]any{{"type": "value", "options": options}},
		},
		map[string]any{"mergeValues": true, "showValue": "never", "rowHeight": 0.8, "legend": map[string]any{"displayMode": "list", "placement": "bottom", "showLegend": true}})
}

// table returns a panel with a row for each series. Series of several queries with the same labels
// share a row.
func table(width, height int, title, description string, exprs []string, shown columnsOf, more ...override) one {
	var questions []Question
	for _, expr := range exprs {
		questions = append(questions, Question{Expr: expr, LegendFormat: "__auto", Instant: true, Format: "table"})
	}
	p := panel(width, height, "table", title, description, questions,
		map[string]any{"unit": "none", "custom": map[string]any{"align": "left", "filterable": true}},
		map[string]any{"showHeader": true, "cellHeight": "sm", "sortBy": []map[string]any{{"displayName": shown.first, "desc": false}}})
	if len(exprs) > 1 {
		p.Transformations = append(p.Transformations, transformation{"merge", map[string]any{}})
	}
	p.Transformations = append(p.Transformations, transformation{"organize", map[string]any{
		"excludeByName": map[string]any{"Time": true}, "indexByName": shown.index, "renameByName": shown.names,
	}})
	p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, more...)
	return p
}

// columnsOf contains the columns of a table in order, and their titles.
type columnsOf struct {
	first string // the column by which the table is sorted
	index map[string]int
	names map[string]string
}

func columns(pairs ...string) columnsOf {
	c := columnsOf{pairs[1], map[string]int{}, map[string]string{}}
	for pair := range slices.Chunk(pairs, 2) {
		c.index[pair[0]] = len(c.index)
		c.names[pair[0]] = pair[1]
	}
	return c
}

func column(name string, properties ...property) override {
	return override{Matcher: property{ID: "byName", Options: name}, Properties: properties}
}

func unit(name, unit string) override { return column(name, property{ID: "unit", Value: unit}) }

// since shows a time as the duration since then.
func since(name string) override { return unit(name, "dateTimeFromNow") }

func wide(name string, pixels int) override {
	return column(name, property{ID: "custom.width", Value: pixels})
}

// page links a cause or a kind to its page.
func page(name string) override {
	return column(name, property{ID: "links", Value: []link{{Title: "Runbook", URL: runbooks + "${__value.raw}.md", TargetBlank: true}}})
}

// colour colours a cell by its text. The map contains the colour and the replacement text.
func colour(name string, of map[string]string) override {
	options := map[string]any{}
	for i, text := range slices.Sorted(maps.Keys(of)) {
		color, shown, _ := strings.Cut(of[text], " ")
		option := map[string]any{"color": color, "index": i}
		if shown != "" {
			option["text"] = shown
		}
		options[text] = option
	}
	return column(name, property{ID: "mappings", Value: []map[string]any{{"type": "value", "options": options}}},
		property{ID: "custom.cellOptions", Value: map[string]any{"type": "color-text"}})
}

// alarming colours a number from 1 on.
func alarming(name, color string) override {
	return column(name,
		property{ID: "thresholds", Value: map[string]any{"mode": "absolute", "steps": []map[string]any{{"color": "text", "value": nil}, {"color": color, "value": 1}}}},
		property{ID: "custom.cellOptions", Value: map[string]any{"type": "color-text"}})
}

// gauge shows a share as a bar, orange from 80 % on and red from 90 %.
func gauge(name string) override {
	steps := []map[string]any{{"color": "green", "value": nil}, {"color": "orange", "value": 0.8}, {"color": "red", "value": 0.9}}
	return column(name, property{ID: "unit", Value: "percentunit"}, property{ID: "min", Value: 0}, property{ID: "max", Value: 1},
		property{ID: "thresholds", Value: map[string]any{"mode": "absolute", "steps": steps}},
		property{ID: "custom.cellOptions", Value: map[string]any{"type": "gauge", "mode": "basic"}})
}
