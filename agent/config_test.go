package agent

import "testing"

func TestInvalidConfigurationIsRefused(t *testing.T) {
	for _, c := range []Config{{Wire: "carrier-pigeon"}, {Interfaces: []string{"[eth"}}, {ExcludeInterfaces: []string{"["}}, {CRISocket: "x.sock"}} {
		if _, err := c.defaults(); err == nil {
			t.Errorf("configuration %+v: got no error", c)
		}
	}
}
