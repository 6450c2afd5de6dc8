package verdict_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// blue returns a network namespace that was made by hand.
func blue(name string) verdict.Workload {
	return verdict.Workload{Kind: verdict.Unknown, Name: name, Source: "netns"}
}

func TestRightfulOwner(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world)
		keep  string
		right verdict.Right
	}{
		{"IPAM has it for the newer one", func(w *world) {
			twins(w)
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "new")
		}, "new", verdict.RightAllocation},
		{"IPAM has it for the one that came by hand before", func(w *world) {
			w.within("n1", "", "", blue("blue"))
			w.after(time.Minute).within("n1", "", "kindnet", who("web"))
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "web")
		}, "web", verdict.RightAllocation},
		{"IPAM has it for both: the older one of them", func(w *world) {
			twins(w)
			p := w.pool(verdict.Whereabouts, "", "kindnet")
			w.books(p, "old")
			w.books(p, "new")
		}, "old", verdict.RightOlderAssignment},
		{"IPAM has it for two of three, and the third one came first", func(w *world) {
			w.within("n1", "", "", blue("blue"))
			w.after(time.Minute).within("n1", "", "", who("old"))
			w.after(time.Minute).within("n1", "", "", who("new"))
			p := w.pool(verdict.HostLocal, "n1", "kindnet")
			w.books(p, "old")
			w.books(p, "new")
		}, "old", verdict.RightOlderAssignment},
		{"the gateway of a pool on its bridge", func(w *world) {
			w.addr = netip.MustParseAddr("10.244.0.1")
			w.within("n1", "cni0", "", who("web"))
			w.after(time.Minute).device("n1", "cni0", "bridge")
			p := w.pool(verdict.HostLocal, "n1", "pods", "10.244.0.2-10.244.255.254")
			p.Device, p.Gateways = "cni0", []netip.Addr{w.addr}
		}, "n1", verdict.RightAllocation},
		{"the gateway of a pool on another device", func(w *world) {
			w.addr = netip.MustParseAddr("10.244.0.1")
			w.within("n1", "cni0", "", who("web"))
			w.after(time.Minute).device("n1", "br0", "bridge")
			p := w.pool(verdict.HostLocal, "n1", "pods", "10.244.0.2-10.244.255.254")
			p.Device, p.Gateways = "cni0", []netip.Addr{w.addr}
		}, "web", verdict.RightOlderAssignment},
		{"no records: the older one", func(w *world) { twins(w) }, "old", verdict.RightOlderAssignment},
		{"an older one by hand, without records", func(w *world) {
			w.within("n1", "", "", blue("blue"))
			w.after(time.Minute).within("n1", "", "kindnet", who("web"))
		}, "blue", verdict.RightOlderAssignment},
		{"at one time: the one that was meant to have it", func(w *world) {
			w.within("n1", "", "", blue("blue"))
			w.within("n1", "", "kindnet", who("web"))
		}, "web", verdict.RightIntent},
		{"at one time, and both were meant to", func(w *world) {
			w.within("n1", "", "kindnet", who("a"))
			w.within("n1", "", "kindnet", who("b"))
		}, "", verdict.RightUndecided},
		{"on two nodes whose clocks cannot be compared", func(w *world) {
			w.policy.Networks = []verdict.Network{{Name: "pods", Prefixes: prefixes("10.244.0.0/16")}}
			w.within("n1", "", "", blue("a"))
			w.after(time.Minute).within("n2", "", "", blue("b"))
		}, "", verdict.RightUndecided},
		{"IPAM has it for somebody who may be one of them", func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.after(time.Minute).within("n1", "", "", blue("cni-0123"))
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "young")
		}, "", verdict.RightUndecided},
		{"frames alone, from behind a port, after the assignment", func(w *world) {
			w.within("n1", "cni0", "", blue("blue"))
			w.after(time.Minute)
			guest(w, "")
		}, "blue", verdict.RightOlderAssignment},
		{"frames alone, from behind a port, before the assignment", func(w *world) {
			guest(w, "")
			w.after(time.Minute).within("n1", "cni0", "", blue("blue"))
		}, "", verdict.RightUndecided},
		{"a device outside, and a node", func(w *world) {
			w.wire(w.device("n1", "eth0", ""), "\x02\x00\x00\x00\x00\x99")
		}, "", verdict.RightUndecided},
		{"a kernel that refused it", func(w *world) {
			w.addr = netip.MustParseAddr("fd00:10:244::5")
			w.within("n1", "cni0", "", blue("first"))
			w.after(time.Minute).within("n1", "cni0", "", blue("refused")).Kind = verdict.DADFailed
		}, "first", verdict.RightOlderAssignment},
		{"a sandbox of a pod that is no more", func(w *world) {
			twins(w)
			w.says("uid-old", verdict.PodObject{Absent: true})
			w.says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Running"})
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "old")
		}, "new", verdict.RightIntent},
		{"two sandboxes of one pod", func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			second := who("web")
			second.ContainerID = "container-second"
			w.after(time.Minute).within("n1", "", "kindnet", second)
		}, "", verdict.RightUndecided},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := situation{build: test.build}
			c := s.judge(t)
			if got := keeper(&c); got != test.keep || c.Right != test.right {
				t.Errorf("got %q by %d, want %q by %d:\n%s", got, c.Right, test.keep, test.right, strings.Join(flat(c.Remedy), "\n"))
			}
		})
	}
}

// paths returns all ways through a remedy, each with one alternative of each choice.
func paths(actions []verdict.Action) [][]verdict.Action {
	all := [][]verdict.Action{nil}
	for _, a := range actions {
		ways := [][]verdict.Action{{a}}
		if len(a.Choice) > 0 {
			ways = nil
			for _, alternative := range a.Choice {
				ways = append(ways, paths(alternative.Actions)...)
			}
		}
		var longer [][]verdict.Action
		for _, path := range all {
			for _, way := range ways {
				longer = append(longer, append(slices.Clone(path), way...))
			}
		}
		all = longer
	}
	return all
}

// takes matches the commands that take an address from an owner; its group is the owner's name.
var takes = regexp.MustCompile(`^kubectl delete pod -n \S+ (?:-- )?(\S+)$|^ip -n (\S+) addr del|^(ip) addr del|^crictl stopp (\S+) `)

// Whichever alternative is chosen, one owner keeps the address. It is the rightful one if that
// is decided and no person is asked.
func TestNoRemedyTakesTheAddressFromAll(t *testing.T) {
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			c := s.judge(t)
			for i, path := range paths(c.Remedy) {
				var taken []string
				for _, a := range path {
					if m := takes.FindStringSubmatch(a.Command); m != nil {
						if name := strings.Join(m[1:], ""); !slices.Contains(taken, name) {
							taken = append(taken, name)
						}
					}
				}
				if len(taken) >= len(c.Owners) {
					t.Errorf("path %d takes it from all, %q:\n%s", i, taken, strings.Join(flat(path), "\n"))
				}
				asked := slices.ContainsFunc(c.Remedy, func(a verdict.Action) bool { return len(a.Choice) > 0 })
				if keep := keeper(&c); !asked && keep != "" && slices.Contains(taken, keep) {
					t.Errorf("path %d takes it from the rightful owner %s:\n%s", i, keep, strings.Join(flat(path), "\n"))
				}
			}
			if len(c.Remedy) == 0 || c.Remedy[len(c.Remedy)-1].Command != fmt.Sprint("ipwitness explain ", c.Address) {
				t.Errorf("got remedy %q, want it to end with what shows that it is over", flat(c.Remedy))
			}
		})
	}
}
