package facts

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// MaxWord is the largest length in bytes of a field, source or interface of a workload.
const MaxWord = 64

func who(w *pb.Workload) verdict.Who {
	kind := Known(w.GetKind(), verdict.Unknown)
	if kind == 0 {
		kind = verdict.Unknown
	}
	return verdict.Workload{
		Kind: kind, Namespace: w.GetNamespace(), Name: w.GetName(), UID: w.GetUid(),
		ContainerID: w.GetContainerId(), Source: w.GetSource(), Process: w.GetProcess(), PID: w.GetProcessId(), Ended: w.GetProcessEnded(),
		VirtualMachine: w.GetVirtualMachine(), Sources: sources(w.GetSources()),
	}.Who()
}

// sources packs the sources of a workload's fields.
func sources(fields map[string]string) string {
	if len(fields) == 0 {
		return ""
	}
	words := make([]string, 0, len(fields))
	for field, source := range fields {
		if len(field) <= MaxWord && len(source) <= MaxWord && !strings.ContainsAny(field+source, "=,") {
			words = append(words, field+"="+source)
		}
	}
	slices.Sort(words)
	return strings.Join(words, ",")
}

// intended packs the addresses that a namespace was meant to have and does not have.
func intended(list []*pb.Intended) string {
	if len(list) == 0 {
		return ""
	}
	lines := make([]string, 0, len(list))
	for _, i := range list {
		a, err := netip.ParseAddr(i.GetAddress())
		if err != nil || len(i.GetSource()) > MaxWord || len(i.GetInterface()) > MaxWord || strings.ContainsAny(i.GetSource()+i.GetInterface(), " \n") {
			continue
		}
		lines = append(lines, a.Unmap().WithZone("").String()+" "+i.GetSource()+" "+i.GetInterface())
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}
