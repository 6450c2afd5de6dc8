package registry_test

import (
	"testing"

	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

func TestEachIPAMIsFoundByItsName(t *testing.T) {
	for _, m := range registry.All {
		if got := registry.Of(m.Name); got != m || m.Name == "" || m.Title == "" {
			t.Errorf("got %+v for %q, want %+v with a name, a title and titles of pools", got, m.Name, m)
		}
	}
	for _, name := range []string{"", "unknown"} {
		if m := registry.Of(name); m == nil || m.Name != "" || m.Texts != nil {
			t.Errorf("got %+v for %q, want an IPAM without traits", m, name)
		}
	}
}

func TestIPAMsAreFoundByWhatTheyHaveOnNodes(t *testing.T) {
	if got := registry.NodeNamed(); got != &calico.IPAM {
		t.Errorf("got %+v, want Calico", got)
	}
	for device, want := range map[string]bool{"cilium_host": true, "": false, "vxlan": false} {
		if got := registry.WithPodDevice(device); (got == &cilium.IPAM) != want || (got == nil) == want {
			t.Errorf("got %+v for device %q, want Cilium %v", got, device, want)
		}
	}
}
