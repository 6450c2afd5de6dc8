package azure

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// advisor collects the steps of a remedy. The holder can be restarted if it has a command for that.
type advisor struct {
	advice.Advice
	restart string
}

func (a *advisor) Restart(then string) {
	actions, fix := a.Restarting(then)
	a.Act(actions...)
	if fix.What != "" {
		a.Fix(fix)
	}
}

func (a *advisor) RestartNow(then string) { a.Restart(then) }

func (a *advisor) Restarting(then string) ([]advice.Action, advice.Fix) {
	if a.restart == "" {
		return nil, advice.Fix{}
	}
	return []advice.Action{advice.Say("Restart it: %s.", then).By("", a.restart)}, advice.Fix{What: "Restart it.", Command: a.restart, Manual: true}
}

// commands returns the commands of actions, with those of each alternative in parentheses.
func commands(actions []advice.Action) string {
	var all []string
	for _, a := range actions {
		if a.Command != "" {
			all = append(all, a.Command)
		}
		for _, c := range a.Choice {
			all = append(all, "("+commands(c.Actions)+")")
		}
	}
	return strings.Join(all, "; ")
}

const (
	emptied = "kubectl drain --ignore-daemonsets --delete-emptydir-data n1; systemctl reboot"
	allowed = "kubectl uncordon n1"
	checked = "crictl pods --no-trunc --id " + "c0123456789abcdef"
)

func TestRemediesRestartTheHolderAndWriteNoRecord(t *testing.T) {
	pod := &ipam.Holder{Name: "pod a/b", IsPod: true}
	for name, test := range map[string]struct {
		remedy        func(ipam.Remedies)
		holder        *ipam.Holder
		container     string
		restart, want string
		fixes         int
	}{
		"free, pod":            {ipam.Remedies.Reserve, pod, "", "restart", "kubectl cordon n1; ipwitness audit --kind in-use-unallocated n1; (restart); (" + emptied + "); " + allowed, 1},
		"free, container":      {ipam.Remedies.Reserve, &ipam.Holder{}, "", "restart", "ipwitness audit --kind in-use-unallocated n1; (restart); (" + emptied + ")", 1},
		"free, no holder":      {ipam.Remedies.Reserve, nil, "", "", "ipwitness audit --kind in-use-unallocated n1; (); (" + emptied + ")", 0},
		"another's, pod":       {ipam.Remedies.Reassign, pod, "c0123456789abcdef", "restart", "kubectl cordon n1; restart; " + allowed, 1},
		"another's, container": {ipam.Remedies.Reassign, &ipam.Holder{}, "c0123456789abcdef", "restart", "restart", 1},
		"another's, no holder": {ipam.Remedies.Reassign, nil, "c0123456789abcdef", "", "", 0},
		"leaked":               {ipam.Remedies.Release, nil, "c0123456789abcdef", "", checked + "; (crictl rmp c0123456789a); (); (" + emptied + "; " + allowed + ")", 1},
		"leaked, no container": {ipam.Remedies.Release, nil, "", "", emptied + "; " + allowed, 1},
	} {
		a := &advisor{restart: test.restart}
		test.remedy(repair.Remedies(ipam.Case{
			Address: netip.MustParseAddr("10.241.0.5"), Pool: &ipam.Pool{IPAM: Name}, Node: "n1", Holder: test.holder, Allocation: ipam.Allocation{ContainerID: test.container},
		}, a))
		if got := commands(a.Remedy); got != test.want || len(a.Fixes) != test.fixes {
			t.Errorf("%s: got %q and %d fixes, want %q and %d", name, got, len(a.Fixes), test.want, test.fixes)
		}
		if i := slices.IndexFunc(a.Fixes, func(f advice.Fix) bool { return !f.Manual }); i >= 0 {
			t.Errorf("%s: got %+v, want only steps by hand", name, a.Fixes[i])
		}
	}
}

func TestNamesInCommandsAreQuoted(t *testing.T) {
	const node = "-n; rm"
	a := &advisor{}
	r := repair.Remedies(ipam.Case{Pool: &ipam.Pool{}, Node: node, Holder: &ipam.Holder{IsPod: true}, Allocation: ipam.Allocation{ContainerID: "$(rm)"}}, a)
	r.Reserve()
	r.Release()
	got := commands(append(a.Remedy, repair.Loss.Empty(node, "k1")...))
	for _, raw := range []string{" -n; rm", "id $(rm)", "rmp $(rm)"} {
		if strings.Contains(got, raw) {
			t.Errorf("got %q, want %q quoted", got, raw)
		}
	}
}

func TestTextsNameTheFile(t *testing.T) {
	p := &ipam.Pool{Name: "/run/azure-cns/azure-endpoints.json" + second}
	const file = "/run/azure-cns/azure-endpoints.json"
	if got := repair.Location(p, netip.Addr{}); got != file {
		t.Errorf("location: got %s, want %s", got, file)
	}
	for what, got := range map[string]string{
		"access": repair.Access(p), "loss": repair.Loss.Search(&ipam.Pool{Name: file}),
		"title": IPAM.PoolTitle(&ipam.Pool{Name: file}, ""), "title of the node": IPAM.PoolTitle(&ipam.Pool{Name: file}, "n1"),
	} {
		if !strings.Contains(got, file) || strings.Contains(got, second) || strings.Contains(got, "n1") != (what == "title of the node") {
			t.Errorf("%s: got %q, want the file", what, got)
		}
	}
	for what, got := range map[string]string{"exclusion": repair.Exclude(p, "n1", netip.Addr{}).How, "enlargement": repair.Enlarge(p), "effect": repair.Free} {
		if got == "" {
			t.Error(fmt.Sprint("no text for ", what))
		}
	}
}
