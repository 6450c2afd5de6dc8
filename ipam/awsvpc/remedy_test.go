package awsvpc

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// advisor collects the steps of a remedy. The restart of the holder is one action.
type advisor struct {
	advice.Advice
	holder *ipam.Holder
}

const restart = "kubectl delete pod -n default web"

func (a *advisor) Restart(then string) {
	actions, fix := a.Restarting(then)
	a.Act(actions...)
	if fix.What != "" {
		a.Fix(fix)
	}
}

func (a *advisor) RestartNow(string) {
	panic("ipamd may give the successor the address of another holder")
}

func (a *advisor) Restarting(then string) ([]advice.Action, advice.Fix) {
	if a.holder == nil {
		return nil, advice.Fix{}
	}
	return []advice.Action{advice.Say("Restart the holder: %s.", then).By("", restart)}, advice.Fix{What: "Restart the holder.", Command: restart, Manual: true}
}

// steps returns the commands of actions, and the beginnings of the texts of actions without one.
func steps(actions []advice.Action) (list []string) {
	for _, a := range actions {
		switch {
		case a.Command != "" && a.Node != "":
			list = append(list, a.Node+": "+a.Command)
		case a.Command != "":
			list = append(list, a.Command)
		case len(a.Choice) == 0:
			list = append(list, strings.Join(strings.Fields(a.Text)[:3], " "))
		}
		for _, c := range a.Choice {
			list = append(list, "if "+c.When)
			list = append(list, steps(c.Actions)...)
		}
	}
	return list
}

func TestRemediesAreThoseThatIPAMDAllows(t *testing.T) {
	pool := &ipam.Pool{IPAM: Name, Name: "/run/aws-node/ipam.json"}
	pod := &ipam.Holder{Name: "pod default/web", IsPod: true, Place: ipam.Place{Node: "n1", KubernetesNode: "k1"}}
	const log = `n1@2: grep -E 'presuming stale/dead|stale IP allocation|10.0.0.5' /var/log/aws-routed-eni/ipamd.log`
	const leave = "Leave the record"
	reserve := func(node string) []string {
		return []string{
			"Do not edit", "ipwitness audit --kind in-use-unallocated n1@2", "if it is only 10.0.0.5", restart,
			"if there are others", "kubectl drain --ignore-daemonsets --delete-emptydir-data " + node, "n1@2: systemctl reboot",
		}
	}
	for name, c := range map[string]struct {
		holder    *ipam.Holder
		container string
		remedy    func(ipam.Remedies)
		want      []string
		fixes     []string
	}{
		"missing record":                   {pod, "", ipam.Remedies.Reserve, slices.Concat([]string{"kubectl cordon k1"}, reserve("k1"), []string{"kubectl uncordon k1", log}), []string{restart}},
		"missing record of a device":       {&ipam.Holder{}, "", ipam.Remedies.Reserve, append(reserve("n1"), log), []string{restart}},
		"missing record of nobody":         {nil, "", ipam.Remedies.Reserve, append(slices.DeleteFunc(reserve("n1"), func(s string) bool { return s == restart }), log), nil},
		"other record":                     {pod, "c0ffee000000000", ipam.Remedies.Reassign, []string{"n1@2: crictl pods --no-trunc --id c0ffee000000000", "Restart the holder", restart}, []string{restart}},
		"other record without a container": {pod, "", ipam.Remedies.Reassign, []string{"Restart the holder", restart}, []string{restart}},
		"hostile container":                {pod, "a; reboot", ipam.Remedies.Reassign, []string{"n1@2: crictl pods --no-trunc --id 'a; reboot'", "Restart the holder", restart}, []string{restart}},
		"left record": {nil, "c0ffee000000000", ipam.Remedies.Release, []string{
			"n1@2: crictl pods --no-trunc --id c0ffee000000000", "if it does not exist", leave,
			"if it exists and is NotReady", "n1@2: crictl rmp c0ffee000000", "if it exists and is Ready", "Leave it and", "Addresses leak if",
		}, nil},
		"left record without a container": {nil, "", ipam.Remedies.Release, []string{leave}, nil},
	} {
		a := &advisor{holder: c.holder}
		c.remedy(IPAM.Remedies(ipam.Case{
			Address: netip.MustParseAddr("10.0.0.5"), Pool: pool, Node: "n1@2", Holder: c.holder, Allocation: ipam.Allocation{ContainerID: c.container},
		}, a))
		if got := steps(a.Remedy); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		var fixes []string
		for _, f := range a.Fixes {
			if fixes = append(fixes, f.Command); !f.Manual {
				t.Errorf("%s: got %+v, want only steps by hand", name, f)
			}
		}
		if !slices.Equal(fixes, c.fixes) {
			t.Errorf("%s: got fixes %q, want %q", name, fixes, c.fixes)
		}
	}
}

func TestTextsNameThePool(t *testing.T) {
	p := &ipam.Pool{IPAM: Name, Name: "/run/aws-node/ipam.json"}
	a := netip.MustParseAddr("10.0.0.5")
	if got := IPAM.PoolTitle(p, "n1"); got != "the AWS VPC CNI on node n1 (/run/aws-node/ipam.json)" {
		t.Errorf("got title %q", got)
	}
	if got := IPAM.PoolTitle(p, ""); got != "the AWS VPC CNI (/run/aws-node/ipam.json)" {
		t.Errorf("got title %q", got)
	}
	if got := IPAM.Location(p, a); got != p.Name {
		t.Errorf("got location %q", got)
	}
	for _, got := range []string{IPAM.Access(p), IPAM.Loss.Search(p)} {
		if !strings.Contains(got, p.Name) {
			t.Errorf("got %q, want the file named", got)
		}
	}
	if got := steps(IPAM.Loss.Empty("n1", "k1")); !slices.Equal(got, []string{"kubectl drain --ignore-daemonsets --delete-emptydir-data k1", "n1: systemctl reboot"}) {
		t.Errorf("got %q to empty a node", got)
	}
	if got := IPAM.Exclude(p, "n1", a); got.How == "" || !strings.Contains(got.Step.Text, "10.0.0.5") || IPAM.Enlarge(p) == "" {
		t.Errorf("got %+v", got)
	}
}
