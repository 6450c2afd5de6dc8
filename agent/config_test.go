package agent

import "testing"

func TestConfigurationThatCannotBeMeantIsRefused(t *testing.T) {
	for _, c := range []Config{{Wire: "carrier-pigeon"}, {Interfaces: []string{"[eth"}}, {ExcludeInterfaces: []string{"["}}, {CRISocket: "x.sock"}} {
		if _, err := c.defaults(); err == nil {
			t.Errorf("configuration %+v: got no error", c)
		}
	}
}

func TestAgentIsUsableWithNetlinkOrTheWire(t *testing.T) {
	check := func(observer, namespaces string) []Check {
		return []Check{{Feature: checkObserver, Status: observer}, {Feature: checkNamespaces, Status: namespaces}}
	}
	for _, c := range []struct {
		checks []Check
		usable bool
	}{
		{check(StatusOK, StatusOK), true},
		{check(StatusMissing, StatusOK), true},
		{check(StatusOK, StatusMissing), true},
		{check(StatusMissing, StatusMissing), false},
	} {
		if err := Usable(c.checks); (err == nil) != c.usable {
			t.Errorf("usable with %v: got %v", c.checks, err)
		}
	}
}
