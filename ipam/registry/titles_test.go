package registry

import (
	"slices"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
)

func TestTitlesAreAListInASentence(t *testing.T) {
	named := func(titles ...string) func(*ipam.IPAM) bool {
		return func(m *ipam.IPAM) bool { return slices.Contains(titles, m.Title) }
	}
	for want, match := range map[string]func(*ipam.IPAM) bool{
		"host-local, whereabouts or Calico": named("host-local", "whereabouts", "Calico", "the Kubernetes API"),
		"whereabouts or Calico":             func(m *ipam.IPAM) bool { return named("host-local", "whereabouts", "Calico")(m) && OfCluster(m) },
		"host-local":                        func(m *ipam.IPAM) bool { return named("host-local", "Calico")(m) && OfNodes(m) },
		"":                                  func(*ipam.IPAM) bool { return false },
	} {
		if got := Titles("or", match); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, m := range All {
		if !Any(m) {
			t.Errorf("%s: got that it does not match", m.Title)
		}
	}
}
