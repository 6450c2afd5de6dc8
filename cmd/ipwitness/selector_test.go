package main

import "testing"

func TestSelectorRecognisesItsArgument(t *testing.T) {
	tests := []struct{ arg, query, name string }{
		{"", "", ""},
		{"10.244.0.7", "address=10.244.0.7", ""},
		{"::ffff:10.244.0.7", "address=%3A%3Affff%3A10.244.0.7", ""},
		{"FD00:10:244:0::7", "address=fd00%3A10%3A244%3A%3A7", ""},
		{"fe80::1%eth0", "address=fe80%3A%3A1", ""},
		{"10.244.0.0/16", "cidr=10.244.0.0%2F16", ""},
		{"10.244.3.7/16", "cidr=10.244.0.0%2F16", ""},
		{"fd00:10::/64", "cidr=fd00%3A10%3A%3A%2F64", ""},
		{"default/web-1", "namespace=default&pod=web-1", ""},
		{"10/8", "namespace=10&pod=8", ""}, // an address is not a single number
		{"kube-system/etcd-node.example.com", "namespace=kube-system&pod=etcd-node.example.com", ""},
		{"0A:58:0a:f4:00:07", "mac=0a%3A58%3A0a%3Af4%3A00%3A07", ""},
		{"0a-58-0a-f4-00-07", "mac=0a%3A58%3A0a%3Af4%3A00%3A07", ""},
		{"0a58.0af4.0007", "mac=0a%3A58%3A0a%3Af4%3A00%3A07", ""},
		{"01:23:45:67:89:ab:cd:ef", "address=1%3A23%3A45%3A67%3A89%3Aab%3Acd%3Aef", ""}, // eight groups: IPv6
		{"container/My_App.1", "", "container/My_App.1"},
		{"host/worker-1", "", "host/worker-1"},
	}
	for _, test := range tests {
		sel, err := parseSelector(test.arg)
		if err != nil {
			t.Errorf("%q: %v", test.arg, err)
			continue
		}
		if got := sel.query.Encode(); got != test.query || sel.name != test.name {
			t.Errorf("%q: got query %q, name %q; want %q, %q", test.arg, got, sel.name, test.query, test.name)
		}
	}
}

func TestSelectorRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, arg := range []string{"web", "10.244.0", "10.244.0.0/33", "10.244.0.0/", "/web", "default/", "Default/web", "a/b/c", "10.0/16", "02:42:ac:11:00", "container/", " "} {
		if sel, err := parseSelector(arg); err == nil {
			t.Errorf("%q: got %v, want an error", arg, sel.query)
		}
	}
}

func TestIDAndAddressAreDistinguished(t *testing.T) {
	tests := []struct{ arg, id, address string }{
		{"k3j5x2a7", "k3j5x2a7", ""},
		{"1234", "1234", ""},
		{"10.244.0.7", "", "10.244.0.7"},
		{"fd00::7", "", "fd00::7"},
		{"::ffff:10.0.0.1", "", "::ffff:10.0.0.1"},
	}
	for _, test := range tests {
		id, address, err := idOrAddress(test.arg)
		if err != nil || id != test.id || address != test.address {
			t.Errorf("%q: got id %q, address %q, error %v; want %q, %q", test.arg, id, address, err, test.id, test.address)
		}
	}
	for _, arg := range []string{"", "K3J5", "10.0.0.0/8", "default/web", "../nodes"} {
		if _, _, err := idOrAddress(arg); err == nil {
			t.Errorf("%q: got no error, want one", arg)
		}
	}
}
