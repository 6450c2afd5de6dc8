package dhcp

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestMACBeforeWithTheSameClientIdentifier(t *testing.T) {
	const a, b, address = "02:00:00:00:00:0a", "02:00:00:00:00:0b", "10.9.0.11"
	ask := func(mac, client string) string {
		return later + " " + mac + " " + address + " * " + client + "\n"
	}
	for name, c := range map[string]struct {
		files []string // as they are read, one after the other
		want  string
	}{
		"one client":                        {[]string{ask(a, "ff:01"), ask(a, "ff:01")}, ""},
		"two clients of one identifier":     {[]string{ask(a, "ff:01"), ask(b, "ff:01")}, a},
		"and the second one renews":         {[]string{ask(a, "ff:01"), ask(b, "ff:01"), ask(b, "ff:01")}, a},
		"another client gets the address":   {[]string{ask(a, "ff:01"), ask(b, "ff:02")}, ""},
		"clients that send no identifier":   {[]string{ask(a, "*"), ask(b, "*")}, ""},
		"a lease that ended in between":     {[]string{ask(a, "ff:01"), "0 " + b + " 10.9.0.12 * *\n", ask(b, "ff:01")}, ""},
		"the other one gets it after these": {[]string{ask(a, "ff:01"), ask(b, "ff:01"), ask(a, "ff:02")}, ""},
	} {
		s := &server{}
		now := time.Unix(1700000000, 0)
		for _, file := range c.files {
			leases, invalid := parseLeases([]byte(file))
			if invalid != "" {
				t.Fatal(invalid)
			}
			for range 2 { // until it is certain that a lease is gone
				s.keep(leases, now)
				now = now.Add(time.Minute)
			}
		}
		if got := s.leases[netip.MustParseAddr(address)].FormerMAC; got != c.want {
			t.Errorf("%s: got %q before, want %q", name, got, c.want)
		}
	}

	// Kea's file has what was before.
	j := journal{}
	row := func(mac string) string {
		return strings.Replace(line(address, mac, "3600", "0", ""), mac+",,", mac+",01:02,", 1)
	}
	var bad faults
	if err := j.read("leases", []byte(header4+row(a)+row(b)+row(b)), &bad); err != nil || bad.String() != "" {
		t.Fatal(err, bad.String())
	}
	if got := j[netip.MustParseAddr(address)].FormerMAC; got != a {
		t.Errorf("Kea: got %q before, want %q", got, a)
	}

	// A lease of IPv6 is that of a DUID and of one of its associations.
	for name, c := range map[string]struct{ duid, iaid, want string }{
		"one DUID":     {"00:02:00:00:ab:11:f9", "219205470", a},
		"another DUID": {"00:02:00:00:ab:11:fa", "219205470", ""},
		"another interface of the client, which has freed it": {"00:02:00:00:ab:11:f9", "7", ""},
	} {
		j, six := journal{}, netip.MustParseAddr("2001:db8::8")
		row := func(duid, iaid, mac string) string {
			return "2001:db8::8," + duid + ",3600,4000000000,1,1800,0," + iaid + ",128,0,0,," + mac + ",0,,1,2\n"
		}
		const header6 = "address,duid,valid_lifetime,expire,subnet_id,pref_lifetime,lease_type,iaid,prefix_len,fqdn_fwd,fqdn_rev,hostname,hwaddr,state,user_context,hwtype,hwaddr_source\n"
		if err := j.read("leases", []byte(header6+row("00:02:00:00:ab:11:f9", "219205470", a)+row(c.duid, c.iaid, b)), &bad); err != nil || bad.String() != "" {
			t.Fatal(err, bad.String())
		}
		if got := j[six]; got.MAC != b || got.FormerMAC != c.want {
			t.Errorf("%s: got %s and %q before, want %s and %q", name, got.MAC, got.FormerMAC, b, c.want)
		}
	}
}
