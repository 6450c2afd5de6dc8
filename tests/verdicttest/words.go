package verdicttest

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Words returns facts with their operands in the form KIND OPERAND=VALUE…. Owners are named by
// their workloads.
func Words(c *verdict.Conflict, facts ...verdict.Fact) (words []string) {
	for _, f := range facts {
		words = append(words, word(c, f))
	}
	return words
}

// RuledOut returns the causes that were ruled out, in the form CAUSE: FACT.
func RuledOut(c *verdict.Conflict) (words []string) {
	for _, r := range c.RuledOut {
		open := ""
		if r.Open {
			open = " (open)"
		}
		words = append(words, r.Cause+open+": "+word(c, r.Fact))
	}
	return words
}

// Name returns the name of an owner of a conflict: its workload, node or hardware address.
func Name(c *verdict.Conflict, id string) string {
	o := c.Owner(id)
	if o == nil {
		return id
	}
	_, name := o.Named()
	return cmp.Or(name, o.Workload().ContainerID, o.MAC.String())
}

func word(c *verdict.Conflict, f verdict.Fact) string {
	words := []string{string(f.Kind)}
	say := func(operand string, values ...string) {
		if value := strings.Join(values, ","); value != "" {
			words = append(words, operand+"="+value)
		}
	}
	names := make([]string, 0, len(f.Owners))
	for _, id := range f.Owners {
		names = append(names, Name(c, id))
	}
	say("owners", names...)
	say("nodes", f.Nodes...)
	say("others", f.Others...)
	say("devices", f.Devices...)
	if f.Pool != (verdict.PoolName{}) {
		say("pool", strings.Join([]string{f.Pool.IPAM, f.Pool.Node, f.Pool.Network}, "|"))
	}
	say("device", f.Device)
	say("network", f.Network)
	ranges := make([]string, 0, len(f.Ranges.List))
	for _, r := range f.Ranges.List {
		ranges = append(ranges, r.String())
	}
	say("ranges", ranges...)
	for _, a := range f.Addresses {
		say("address", a.String())
	}
	if n := f.NodeName; n.Name != "" {
		say("called", n.Name+"@"+n.File)
	}
	say("text", strings.ReplaceAll(f.Text, " ", "_"))
	if f.At != 0 {
		say("at", f.At.Sub(Start).String())
	}
	if f.Count != 0 {
		say("count", fmt.Sprint(f.Count))
	}
	if f.State != 0 {
		say("state", fmt.Sprint(f.State))
	}
	for _, r := range f.Records {
		record := holder(r.Holder)
		if r.Owner != "" {
			record += "->" + Name(c, r.Owner)
		}
		say("record", record)
	}
	return strings.Join(words, " ")
}

// holder returns the parts of an allocation's holder, separated by |.
func holder(h verdict.Holder) string {
	return strings.Trim(strings.Join([]string{strings.ReplaceAll(h.Purpose, " ", "_"), h.Namespace, h.Pod, h.ContainerID, h.Node}, "|"), "|")
}
