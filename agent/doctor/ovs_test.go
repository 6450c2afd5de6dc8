package doctor

import (
	"strings"
	"testing"
)

func TestDoctorChecksTenantsOfOpenVSwitch(t *testing.T) {
	for _, test := range []struct {
		ports          []string
		status, detail string
	}{
		{nil, StatusOK, "no ports"},
		{[]string{"veth1", "eth1"}, StatusOK, "2 ports"},
		{[]string{"4f3a0d5b1c2d_h", "eth1"}, StatusDegraded, "2 ports, 1 of them Kube-OVN's"},
	} {
		if c := ovsCheck(test.ports); c.Status != test.status || !strings.Contains(c.Detail, test.detail) || (c.Status == StatusOK) != (c.Fix == "") {
			t.Errorf("%q: got %+v, want %s and %q", test.ports, c, test.status, test.detail)
		}
	}
}
