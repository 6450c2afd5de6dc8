package containers

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// podmanNode has the directories of podman.
type podmanNode struct {
	t       *testing.T
	host    ipamtest.Host
	root    string
	storage string
	*podmanSource
	db ipamtest.Bucket
}

// lanConfig is what podman 4.3.1 has written for a network with macvlan.
const lanConfig = `{"name":"lan","id":"5aa51665899d0eb9cc6ad6d6af9950d8185b3ca8c91907a34e84934d43283f27","driver":"macvlan","network_interface":"eth9","created":"2026-11-23T09:24:06.584902695Z","subnets":[{"subnet":"192.168.50.0/24","gateway":"192.168.50.1","lease_range":{"start_ip":"192.168.50.65","end_ip":"192.168.50.79"}}],"ipv6_enabled":false,"internal":false,"dns_enabled":true,"ipam_options":{"driver":"host-local"}}`

func newPodmanNode(t *testing.T) *podmanNode {
	t.Helper()
	n := &podmanNode{t: t, host: ipamtest.NewHost(), root: t.TempDir(), db: ipamtest.Bucket{}}
	n.storage = filepath.Join(n.root, "storage", "overlay-containers")
	n.podmanSource = newPodman(n.host, ipam.FilesConfig{Dirs: []string{filepath.Join(n.root, "run"), filepath.Join(n.root, "etc"), filepath.Dir(n.storage)}}).(*podmanSource)
	return n
}

// give gives a container an address of a network.
func (n *podmanNode) give(network, subnet, addr, id string) {
	if n.db[network] == nil {
		n.db[network] = ipamtest.Bucket{"ids": ipamtest.Bucket{}, subnet: ipamtest.Bucket{}}
	}
	b := n.db[network].(ipamtest.Bucket)
	b["ids"].(ipamtest.Bucket)[id] = `["` + addr + `"]`
	a := netip.MustParseAddr(addr).AsSlice()
	b[subnet].(ipamtest.Bucket)[string(a)] = id
	b[subnet].(ipamtest.Bucket)["lastIP"] = a
}

func (n *podmanNode) save() {
	n.t.Helper()
	if err := ipamtest.WriteBolt(n.Path, n.db, podmanWritten); err != nil {
		n.t.Fatal(err)
	}
}

func (n *podmanNode) write(path, content string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Chtimes(path+".new", podmanWritten, podmanWritten); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		n.t.Fatal(err)
	}
}

// container writes the configuration of a container.
func (n *podmanNode) container(id, manager, netns string) {
	n.write(filepath.Join(n.storage, id, "userdata", "config.json"),
		fmt.Sprintf(`{"ociVersion":"1.0.2","annotations":{"io.container.manager":"%s"},"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"%s"}]}}`, manager, netns))
}

// podmanWritten is when all files were written.
var podmanWritten = time.Unix(1_795_425_845, 0)

// look reads everything that may have changed, an hour after it was written.
func (n *podmanNode) look() (again bool) {
	n.t.Helper()
	n.Find(podmanWritten)
	return n.Read(ipam.FileRead{Now: podmanWritten.Add(time.Hour), All: true})
}

func TestModesOfIPVLAN(t *testing.T) {
	for options, routed := range map[string]bool{
		`"driver":"ipvlan"`: false, `"driver":"ipvlan","options":{"mode":"l2"}`: false, `"driver":"ipvlan","options":{"mode":"l3s"}`: true,
		`"driver":"macvlan","options":{"mode":"bridge"}`: false,
	} {
		n := newPodmanNode(t)
		n.give("lan", "192.168.50.0/24", "192.168.50.65", "c2")
		n.save()
		n.write(filepath.Join(n.root, "etc", "lan.json"), strings.Replace(lanConfig, `"driver":"macvlan"`, options, 1))
		n.look()
		if p := n.Pools()[0]; p.Device != "eth9" || p.Routed != routed || len(p.Ranges) != 1 {
			t.Errorf("%s: got %+v, want routed %t", options, p.Pool, routed)
		}
	}
}

func TestNetworksAndContainersAreRead(t *testing.T) {
	n := newPodmanNode(t)
	if n.look(); len(n.Pools())+len(n.Containers())+len(n.Problems()) != 0 || len(n.Places()) != 1 {
		t.Errorf("got pools %v, containers %v, problems %q without podman", n.Pools(), n.Containers(), n.Problems())
	}
	n.give("podman", "10.88.0.0/16", "10.88.0.2", "c1")
	n.give("lan", "192.168.50.0/24", "192.168.50.65", "c2")
	n.give("lan", "192.168.50.0/24", "192.168.50.66", "infra")
	n.save()
	n.write(filepath.Join(n.root, "etc", "lan.json"), lanConfig)
	n.write(filepath.Join(n.root, "etc", "bad.json"), "{")
	n.write(filepath.Join(n.storage, "volatile-containers.json"), `[{"id":"c2","names":["mac"],"flags":{"Volatile":true}},{"id":"cached","names":["build"],"flags":{"Volatile":true}}]`)
	n.write(filepath.Join(n.storage, "containers.json"), `[{"id":"c1","names":["web"]},{"id":"infra","names":["pod-infra"]},{"id":"a-member","names":["app"]},{"id":"z-member","names":["sidecar"]},{"id":"crio","names":["k8s_POD"]},{"id":"new","names":["created"]},{"id":"nameless"}]`)
	n.container("c1", "libpod", "/run/netns/n1")
	n.container("c2", "libpod", "/run/netns/n2")
	for _, id := range []string{"infra", "a-member", "z-member"} {
		n.container(id, "libpod", "/run/netns/pod")
	}
	n.container("crio", "cri-o", "/run/netns/crio")
	if !n.look() { // the places follow from the networks
		t.Error("got no second look after a change")
	}
	if n.look() {
		t.Error("got a second look without a change")
	}
	want := []string{"lan: 192.168.50.65=c2 192.168.50.66=infra", "podman: 10.88.0.2=c1"}
	var got []string
	for _, p := range n.Pools() {
		line := strings.TrimPrefix(p.Network, "podman:") + ":"
		for _, a := range slices.SortedFunc(maps.Keys(p.Changes), netip.Addr.Compare) {
			line += " " + a.String() + "=" + p.Changes[a].ContainerID
		}
		got = append(got, line)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	lan, bridge := n.Pools()[0], n.Pools()[1]
	if lan.Device != "eth9" || lan.Routed || !slices.Equal(lan.Ranges, []ipam.Range{{First: netip.MustParseAddr("192.168.50.65"), Last: netip.MustParseAddr("192.168.50.79")}}) {
		t.Errorf("got %+v, want the configured range on eth9", lan.Pool)
	}
	if bridge.Device != "podman0" || !bridge.Routed || bridge.Contains(netip.MustParseAddr("10.88.0.1")) || !bridge.Contains(netip.MustParseAddr("10.88.255.254")) || bridge.Contains(netip.MustParseAddr("10.88.255.255")) {
		t.Errorf("got %+v, want the default network", bridge.Pool)
	}
	var names []string
	for _, c := range n.Containers() {
		names = append(names, c.ID+" "+c.Name+" "+c.Netns+fmt.Sprint(len(c.Given)))
	}
	if want := []string{"c1 web /run/netns/n11", "c2 mac /run/netns/n21", "infra pod-infra /run/netns/pod1"}; !slices.Equal(names, want) {
		t.Errorf("got containers %q, want %q", names, want)
	}
	n.write(filepath.Join(n.storage, "containers.json"), `[{"id":"c1","names":"web"},{"id":"infra","names":["renamed"]},{"id":"a-member","names":["app"]}]`)
	n.look()
	names = nil
	for _, c := range n.Containers() {
		names = append(names, c.ID+" "+c.Name)
	}
	if want := []string{"c1 web", "c2 mac", "infra renamed"}; !slices.Equal(names, want) || len(n.Problems()) != 1 || !strings.Contains(n.Problems()[0], "container 0 (c1)") {
		t.Errorf("got containers %q and problems %q of a bad entry, want %q and that the entry is named", names, n.Problems(), want)
	}
	n.write(filepath.Join(n.storage, "containers.json"), `[{"id":"c1","names":["web"]},{"id":"infra","names":["pod-infra"]},{"id":"a-member","names":["app"]}]`)
	n.look()
	n.write(filepath.Join(n.root, "etc", "lan.json"), "{")
	n.save()
	n.look()
	if lan, bridge := n.Pools()[0], n.Pools()[1]; lan.State != ipam.Unreadable || bridge.State != ipam.Known || len(n.Problems()) != 1 {
		t.Errorf("got %+v, %+v and problems %q of a bad configuration of lan, want only this one unreadable", lan.Pool, bridge.Pool, n.Problems())
	}
	n.write(filepath.Join(n.root, "etc", "lan.json"), lanConfig)
	n.save()
	n.look()
	for dir, want := range map[string]ipam.State{n.configDir: ipam.Unreadable, n.containers.storage: ipam.Known} {
		n.host.Broken[dir] = os.ErrPermission
		n.save()
		n.look()
		if lan, bridge := n.Pools()[0], n.Pools()[1]; lan.State != want || bridge.State != ipam.Known || len(n.Containers()) != 3 || len(n.Problems()) != 1 {
			t.Errorf("got %+v, %+v, %d containers and problems %q without the list of %s", lan.Pool, bridge.Pool, len(n.Containers()), n.Problems(), dir)
		}
		clear(n.host.Broken)
		n.look()
		if lan := n.Pools()[0]; lan.State != ipam.Known || len(n.Problems()) != 0 {
			t.Errorf("got %+v and problems %q when %s can be read again", lan.Pool, n.Problems(), dir)
		}
	}
	first := n.Containers()[0]
	n.container("c2", "libpod", "/run/netns/other")
	n.look()
	if got := n.Containers(); got[0] != first || got[1].Netns != "/run/netns/other" {
		t.Errorf("got %+v, want the first unchanged and the second moved", got)
	}
	if got := n.Places(); !slices.Contains(got, n.storage) || len(got) != 3 {
		t.Errorf("got places %q, want the containers' among them", got)
	}
	for path, want := range map[string]bool{n.Path: true, filepath.Join(n.storage, "containers.json"): true, filepath.Join(n.root, "etc", "lan.json"): false} {
		if got := n.Event(path, false); got != want {
			t.Errorf("%s: got handled %t, want %t", path, got, want)
		}
	}
}

func TestALostDatabaseIsALossAndABadOneIsNot(t *testing.T) {
	n := newPodmanNode(t)
	n.give("podman", "10.88.0.0/16", "10.88.0.2", "c1")
	n.save()
	n.look()
	n.write(n.Path, "half")
	n.look()
	if p := n.Pools()[0]; p.State != ipam.Unreadable || p.Lost != 0 || len(n.Problems()) != 1 {
		t.Errorf("got %+v and problems %q, want it unreadable", p.Pool, n.Problems())
	}
	n.save()
	n.look()
	n.write(filepath.Join(n.storage, "containers.json"), "[")
	n.look()
	if n.look(); len(n.Problems()) != 1 || !strings.Contains(n.Problems()[0], "cannot read the containers") {
		t.Errorf("got problems %q, want the list", n.Problems())
	}
	if err := os.Remove(n.Path); err != nil {
		t.Fatal(err)
	}
	n.look()
	if p := n.Pools()[0]; p.State != ipam.Missing || p.Lost != 1 {
		t.Errorf("got %+v, want its record lost", p)
	}
	n.db = ipamtest.Bucket{}
	n.give("lan", "192.168.50.0/24", "192.168.50.65", "c2")
	n.save()
	n.host.Hidden[filepath.Join(n.root, "etc")] = errors.New("mount it")
	n.look()
	if got := n.Pools(); len(got) != 2 || got[1].State != ipam.Missing || got[1].Lost != 1 {
		t.Errorf("got %+v, want the record of the old network still lost", got[1])
	}
	if got := n.Problems(); len(got) != 2 || !strings.Contains(got[0], "mount it") {
		t.Errorf("got problems %q, want what to mount", got)
	}
	n.host.Hidden[filepath.Dir(n.Path)] = errors.New("mount it")
	if n.look() {
		t.Error("got a look at files of the container")
	}
}
