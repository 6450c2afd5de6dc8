package kube

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// whereaboutsPool is an IPPool as whereabouts writes it.
const whereaboutsPool = `
metadata: {name: 192.168.2.0-24, namespace: kube-system}
spec:
  range: 192.168.2.0/24
  allocations:
    "1":
      id: 0c85206ce40fd429c62d1499c91f0fd5cb183fd610db3c4c458f167eaa0ee190
      ifname: net1
      podref: test/test-648b75d6fc-f56cp
    "2":
      id: 6442798c086abdad4c636b7c8e51f427511076a250e5434889b675c9e60bca06
      podref: test/test-648b75d6fc-sdbbm
`

func reservation(name, pod string) string {
	return `
metadata: {name: ` + name + `, namespace: kube-system}
spec: {podref: ` + pod + `, ifname: net1}
`
}

// attachmentText is a NetworkAttachmentDefinition as its users write it.
const attachmentText = `
metadata: {name: whereabouts-conf, namespace: default}
spec:
  config: '{
      "cniVersion": "0.3.0",
      "name": "whereaboutsexample",
      "type": "macvlan",
      "master": "eth0",
      "mode": "bridge",
      "ipam": {
        "type": "whereabouts",
        "range": "192.168.2.225/24",
        "exclude": ["192.168.2.0/30", "192.168.2.16"],
        "range_end": "192.168.2.20",
        "gateway": "192.168.2.4"
      }
    }'
`

func TestWhereabouts(t *testing.T) {
	f := newFakeAPI(t)
	f.install(whereaboutsPools, whereaboutsReservations, attachmentDefinitions)
	f.apply(whereaboutsPools, whereaboutsPool)
	f.apply(whereaboutsReservations, reservation("192.168.2.1", "test/test-648b75d6fc-f56cp"))
	l := keep(t, f.open())
	const (
		first  = "192.168.2.1 test/test-648b75d6fc-f56cp 0c85206ce40fd429c62d1499c91f0fd5cb183fd610db3c4c458f167eaa0ee190 net1 at ippools kube-system/192.168.2.0-24 /spec/allocations/1; overlappingrangeipreservations kube-system/192.168.2.1"
		second = "192.168.2.2 test/test-648b75d6fc-sdbbm 6442798c086abdad4c636b7c8e51f427511076a250e5434889b675c9e60bca06 at ippools kube-system/192.168.2.0-24 /spec/allocations/2"
	)
	l.await("all is listed", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.1-192.168.2.254
`+first+"\n"+second)

	f.apply(attachmentDefinitions, attachmentText)
	l.await("the network narrows the range", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+second)
	pool := l.pools["whereabouts kube-system/192.168.2.0-24"]
	if pool.Network != "whereaboutsexample" || pool.Plugin != "macvlan" || pool.Device != "eth0" || pool.Base != netip.MustParseAddr("192.168.2.0") ||
		pool.Config != "network-attachment-definitions default/whereabouts-conf" || !slices.Equal(pool.Gateways, addresses("192.168.2.4")) {
		t.Errorf("got %+v", pool)
	}
	l.told()

	// A reservation that the pool does not have keeps its address, too.
	f.apply(whereaboutsReservations, reservation("192.168.2.7", "test/lost"))
	l.await("a reservation is lone", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+second+`
192.168.2.7 test/lost net1 at overlappingrangeipreservations kube-system/192.168.2.7`)
	// One of another pod is no part of the allocation.
	f.apply(whereaboutsReservations, reservation("192.168.2.2", "test/other"))
	l.await("pool and reservation differ", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+second+`
192.168.2.2 test/other net1 at overlappingrangeipreservations kube-system/192.168.2.2
192.168.2.7 test/lost net1 at overlappingrangeipreservations kube-system/192.168.2.7`)
	f.remove(whereaboutsReservations, key{"kube-system", "192.168.2.2"})
	f.remove(whereaboutsReservations, key{"kube-system", "192.168.2.7"})
	f.apply(whereaboutsPools, strings.Replace(whereaboutsPool, `"2":`, `"12":`, 1))
	moved := strings.NewReplacer("192.168.2.2 ", "192.168.2.12 ", "/2", "/12").Replace(second)
	moved = strings.Replace(moved, "2.0-124", "2.0-24", 1)
	l.await("an allocation moves", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+moved)
	if n := l.told(); n != 6 {
		t.Errorf("%d changes are told, want 6", n)
	}
	// The pool goes, and the network stays: whereabouts will make it anew, empty.
	f.remove(whereaboutsPools, key{"kube-system", "192.168.2.0-24"})
	l.await("its records are lost", `
whereabouts kube-system/192.168.2.0-24 missing 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20: IPPool kube-system/192.168.2.0-24 is gone, and a NetworkAttachmentDefinition has its range: whereabouts makes it anew, with nothing in it`)
	f.apply(whereaboutsPools, strings.Replace(whereaboutsPool, `"2":`, `"12":`, 1))
	l.await("it is restored", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+moved)
	f.remove(whereaboutsPools, key{"kube-system", "192.168.2.0-24"})
	f.remove(attachmentDefinitions, key{"default", "whereabouts-conf"})
	l.await("the network is gone, too", "")
}

func TestOddWhereabouts(t *testing.T) {
	f := newFakeAPI(t)
	f.install(whereaboutsPools, whereaboutsReservations)
	f.apply(whereaboutsPools, `
metadata: {name: 10.0.0.0-30, namespace: w}
spec: {range: 10.0.0.0/30, allocations: {"1": {id: a, podref: n/p}, "9": {id: b, podref: n/q}, "x": {id: c, podref: n/r}}}`)
	f.apply(whereaboutsPools, `
metadata: {name: list, namespace: w}
spec: {range: 10.0.1.0/30, allocations: [{id: a}]}`)
	f.apply(whereaboutsPools, `
metadata: {name: none, namespace: w}
spec: {range: somewhere, allocations: {}}`)
	l := keep(t, f.open())
	l.await("odd ones are told", `
whereabouts w/10.0.0.0-30 known 10.0.0.1-10.0.0.2: the IPPool w/10.0.0.0-30 of whereabouts is odd: /spec/allocations/9 is no offset in 10.0.0.0/30: remove it
whereabouts w/list unreadable: the IPPool w/list of whereabouts is odd: its spec is not as we know it: /allocations is a JSON array
whereabouts w/none unreadable: the IPPool w/none of whereabouts is odd: its range "somewhere" is none
10.0.0.1 n/p a at ippools w/10.0.0.0-30 /spec/allocations/1`)
}

func TestRangesOfAttachments(t *testing.T) {
	read := func(config string) *attachment {
		o := &object{Spec: []byte(`{"config":` + config + `}`)}
		o.Name = "nad"
		_, a := readAttachment(o)
		return a
	}
	for name, test := range map[string]struct{ config, pool, prefix, want string }{
		"a list of plugins": {
			`"{\"plugins\":[{\"type\":\"bridge\",\"bridge\":\"br1\",\"ipam\":{\"type\":\"whereabouts\",\"range\":\"10.0.0.0/29\"}},{\"type\":\"tuning\"}]}"`,
			"10.0.0.0-29", "10.0.0.0/29", "nad bridge br1 10.0.0.1-10.0.0.6",
		},
		"first, last and length": {
			`"{\"name\":\"n\",\"type\":\"ipvlan\",\"ipam\":{\"type\":\"whereabouts\",\"range\":\"10.0.0.3-10.0.0.5/29\"}}"`,
			"10.0.0.0-29", "10.0.0.0/29", "n ipvlan  10.0.0.3-10.0.0.5",
		},
		"several ranges, and a name for them": {
			`"{\"name\":\"n\",\"ipam\":{\"type\":\"whereabouts\",\"network_name\":\"blue\",\"ipRanges\":[{\"range\":\"10.0.0.0/29\"},{\"range\":\"fd00::/120\",\"range_start\":\"fd00::10\"}]}}"`,
			"blue-fd00---120", "fd00::/120", "n   fd00::10-fd00::fe",
		},
		"another name": {
			`"{\"name\":\"n\",\"ipam\":{\"type\":\"whereabouts\",\"network_name\":\"blue\",\"range\":\"10.0.0.0/29\"}}"`,
			"10.0.0.0-29", "10.0.0.0/29", "",
		},
		"a slice of each node": {
			`"{\"name\":\"n\",\"ipam\":{\"type\":\"whereabouts\",\"range\":\"10.0.0.0/24\",\"range_start\":\"10.0.0.200\",\"node_slice_size\":\"/28\"}}"`,
			"node-1-10.0.0.16-28", "10.0.0.16/28", "n   10.0.0.17-10.0.0.30",
		},
		"another IPAM":            {`"{\"name\":\"n\",\"ipam\":{\"type\":\"host-local\",\"range\":\"10.0.0.0/24\"}}"`, "10.0.0.0-24", "10.0.0.0/24", ""},
		"a file on the nodes":     {`""`, "10.0.0.0-24", "10.0.0.0/24", ""},
		"what whereabouts is not": {`"{\"ipam\":7}"`, "10.0.0.0-24", "10.0.0.0/24", ""},
	} {
		got := ""
		prefix := netip.MustParsePrefix(test.prefix)
		if a := read(test.config); a != nil {
			for _, r := range a.ranges {
				if r.serves(a, test.pool, prefix) {
					got = a.name + " " + a.plugin + " " + a.device
					for _, given := range r.given(prefix) {
						got += " " + given.First.String() + "-" + given.Last.String()
					}
				}
			}
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// The names of reservations have the network before the address, and no colons.
func TestNamesOfReservations(t *testing.T) {
	for name, want := range map[string]string{
		"10.0.0.5": "", "blue-10.0.0.5": "10.0.0.5", "blue-fd00--5": "", "bluest-10.0.0.5": "", "blue-10.1.0.5": "", "blue-": "",
	} {
		b := &whereBook{network: "blue", prefix: netip.MustParsePrefix("10.0.0.0/24")}
		addr, ok := b.reserves(name)
		if got := addr.String(); ok != (want != "") || ok && got != want {
			t.Errorf("%s: got %s, %t, want %q", name, got, ok, want)
		}
	}
	b := &whereBook{prefix: netip.MustParsePrefix("fd00::/64")}
	if addr, ok := b.reserves(normalized("fd00::5")); !ok || addr != netip.MustParseAddr("fd00::5") {
		t.Errorf("got %s, %t", addr, ok)
	}
	if addr, ok := b.reserves(normalized("fd00::")); !ok || addr != netip.MustParseAddr("fd00::") {
		t.Errorf("got %s, %t", addr, ok)
	}
}

// It is said where whereabouts is there in another version only; and what comes later
// is read.
func TestVersionsOfWhereabouts(t *testing.T) {
	f := newFakeAPI(t)
	f.custom.strange = map[string]string{"whereabouts.cni.cncf.io": "v1beta1"}
	c := f.open()
	l := keep(t, c)
	live(t, c)
	problem := "whereabouts.cni.cncf.io is served as [v1beta1] only, and we know v1alpha1: what whereabouts has given is not known; use a version of ipwitness that knows it"
	l.await("another version", "whereabouts whereabouts.cni.cncf.io unreadable: "+problem)
	if !slices.Contains(c.Status().GetProblems(), problem) {
		t.Errorf("got problems %q", c.Status().GetProblems())
	}
	f.set(func() { f.custom.strange = nil })
	f.install(whereaboutsPools)
	f.apply(whereaboutsPools, whereaboutsPool)
	until(t, "the known version is read", func() bool { return strings.HasPrefix(l.says(), "whereabouts kube-system/192.168.2.0-24 known") })
	if p := c.Status().GetProblems(); len(p) != 0 {
		t.Errorf("got problems %q", p)
	}
	f.uninstall(whereaboutsPools)
	l.await("it is removed", "")
	if p := c.Status().GetProblems(); len(p) != 0 {
		t.Errorf("got problems %q", p)
	}
}
