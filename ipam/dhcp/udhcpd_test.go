package dhcp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// udhcpdLease returns a lease as udhcpd writes it.
func udhcpdLease(seconds uint32, address string, mac byte, hostname string) string {
	a := netip.MustParseAddr(address).As4()
	b := append(binary.BigEndian.AppendUint32(nil, seconds), a[:]...)
	if b = append(b, make([]byte, 28)...); mac != 0 {
		b[8], b[13] = 2, mac
	}
	copy(b[14:], hostname)
	return string(b)
}

// udhcpdFile returns a lease file that was written some seconds after lookAt.
func udhcpdFile(after int64, leases ...string) string {
	text := string(binary.BigEndian.AppendUint64(nil, uint64(lookAt.Unix()+after)))
	for _, l := range leases {
		text += l
	}
	return text
}

func TestUdhcpdIsKnownToHaveWrittenAllLeases(t *testing.T) {
	root := t.TempDir()
	f := &udhcpdFiles{nodeFiles: nodeFiles{versions{}, ipamtest.NewHost(), root}}
	leases := root + "/var/lib/misc/udhcpd.leases"
	read := func(text string) content {
		t.Helper()
		if text != "" {
			write(t, leases, text)
		}
		c, err := f.read(leases)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	write(t, root+udhcpdConfig, "# the LAN\nSTART\t10.9.0.250 # first\nend 10.9.1.20\ninterface br0\nopt lease 3600\nstatic_lease 2:0:0:0:0:f 10.9.0.40\nstart x\nmax_leases 9\n")
	declined := udhcpdLease(1800, "10.9.0.252", 0, "")
	if c := read(""); len(c.Leases)+len(c.Ranges) != 0 || !slices.Equal(texts(c.Reservations), []string{"10.9.0.40 02:00:00:00:00:0f"}) {
		t.Errorf("no file yet: got %+v, want the reservation", c)
	}
	for _, text := range []string{
		udhcpdFile(0, udhcpdLease(3000, "10.9.0.251", 1, "one"), declined),
		udhcpdFile(60, udhcpdLease(3600, "10.9.0.251", 1, "one"), declined), // by chance
		udhcpdFile(60, udhcpdLease(3600, "10.9.0.251", 1, "one"), declined, "cut"),
		udhcpdFile(90, udhcpdLease(3570, "10.9.0.251", 1, "one"), declined),
	} {
		if c := read(text); !slices.Equal(texts(c.Leases), []string{"10.9.0.252"}) || fmt.Sprint(c.Ranges) != "[10.9.0.252/32]" {
			t.Errorf("file that may lack leases: got %+v, want only the address that is kept back", c)
		}
	}
	two := udhcpdLease(3599, "10.9.0.253", 2, "a-name-of-20-letters")
	expired := udhcpdLease(0, "10.9.0.254", 3, "gone")
	for _, text := range []string{udhcpdFile(120, declined, two, expired), udhcpdFile(7200, declined, two, expired)} {
		c := read(text)
		if want := []string{"10.9.0.252", "10.9.0.253 02:00:00:00:00:02 a-name-of-20-letters"}; !slices.Equal(texts(c.Leases), want) {
			t.Errorf("file that is written at each lease: got %q, want %q", texts(c.Leases), want)
		}
		if got, want := fmt.Sprint(c.Ranges), "[10.9.0.250-10.9.1.20]"; got != want {
			t.Errorf("got ranges %s, want %s", got, want)
		}
	}
	if c := read(udhcpdFile(120, two)); !c.Leases[0].Expires.Equal(lookAt.Add((120 + 3599) * time.Second)) {
		t.Errorf("got %v, want an hour after the file was written", c.Leases[0].Expires)
	}
	// A configuration with another name is not seen: its range is not that of the default configuration.
	if err := os.Remove(root + udhcpdConfig); err != nil {
		t.Fatal(err)
	}
	if c := read(""); len(c.Leases) != 1 || len(c.Ranges) != 0 {
		t.Errorf("no configuration: got %+v, want only the lease", c)
	}
}

// Debian's server also writes the file at an interval and at SIGUSR1, at which some leases may just have begun.
func TestUdhcpdIsKnownToLackLeases(t *testing.T) {
	root := t.TempDir()
	f := &udhcpdFiles{nodeFiles: nodeFiles{versions{}, ipamtest.NewHost(), root}}
	leases := root + "/var/lib/misc/udhcpd.leases"
	write(t, root+udhcpdConfig, "start 10.9.0.250\nend 10.9.0.254\nopt lease 3600\n")
	one, two := udhcpdLease(3600, "10.9.0.251", 1, "one"), udhcpdLease(3571, "10.9.0.252", 2, "two")
	for i, text := range []string{
		udhcpdFile(0, udhcpdLease(3000, "10.9.0.251", 1, "one")), udhcpdFile(60, one), udhcpdFile(120, one, udhcpdLease(60, "10.9.0.253", 3, "offered")),
		udhcpdFile(180, two), udhcpdFile(240, one), udhcpdFile(300, one, two), udhcpdFile(360, one), "", udhcpdFile(420, one), "",
	} {
		write(t, leases, text)
		c, err := f.read(leases)
		if err != nil {
			t.Fatal(err)
		}
		if complete := i == 2 || i >= 8; complete != (len(c.Ranges) > 0) {
			t.Errorf("version %d: got %+v, want ranges: %t", i, c, complete)
		}
	}
}

// Kea and udhcpd keep an address back that was found in use; a reservation for nobody is no evidence of that.
func TestAddressesThatWereFoundInUseAreMarked(t *testing.T) {
	ends := lookAt.Add(time.Hour)
	j := journal{}
	var bad faults
	if err := j.read("leases", []byte(header4+line("10.0.0.5", "", "86400", "1", "")+line("10.0.0.6", "", "86400", "0", "")), &bad); err != nil {
		t.Fatal(err)
	}
	_, leases := parseUdhcpdLeases([]byte(udhcpdFile(0, udhcpdLease(3600, "10.0.0.7", 0, ""), udhcpdLease(3600, "10.0.0.8", 8, ""))))
	for _, c := range []struct {
		name string
		record
		kept, ends time.Time
	}{
		{"declined, Kea", j[netip.MustParseAddr("10.0.0.5")], time.Unix(4000000000, 0), time.Time{}},
		{"without a hardware address, Kea", j[netip.MustParseAddr("10.0.0.6")], time.Time{}, time.Unix(4000000000, 0)},
		{"declined, udhcpd", leases[0], ends, time.Time{}},
		{"leased, udhcpd", leases[1], time.Time{}, ends},
		{"reserved for nobody", record{Address: netip.MustParseAddr("10.0.0.9")}, time.Time{}, time.Time{}},
	} {
		s := server{at: location{Path: "p"}}
		s.put(content{Leases: []record{c.record}}, nil, lookAt)
		if got := s.pools["p"].Changes[c.Address]; got == nil || !got.KeptUntil.Equal(c.kept) || !got.Expires.Equal(c.ends) {
			t.Errorf("%s: got %+v, want it kept until %v, or leased until %v", c.name, got, c.kept, c.ends)
		}
	}
}

func TestNothingOfUdhcpdIsNoServer(t *testing.T) {
	s := newUdhcpd(ipamtest.NewHost(), ipam.FilesConfig{Dirs: []string{t.TempDir()}})
	for range 3 {
		s.Find(lookAt)
		s.Read(ipam.FileRead{Now: lookAt, All: true, Lost: true})
	}
	if got := s.Pools(); len(got) != 0 || len(s.Problems()) != 0 {
		t.Errorf("got %v, %q, want none", got, s.Problems())
	}
}

func TestDefaultsOfUdhcpd(t *testing.T) {
	c := parseUdhcpdConfig([]byte("interface eth0\n"))
	if got, want := fmt.Sprint(c.leaseFile, c.leaseTime, c.ranges), "/var/lib/misc/udhcpd.leases240h0m0s [192.168.0.20-192.168.0.254]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := parseUdhcpdConfig([]byte("start 10.0.0.0\nend 10.255.255.255\nlease_file /tmp/leases\n")); len(got.ranges) != 1 || got.leaseFile != "/tmp/leases" {
		t.Errorf("got %+v, want one range", got)
	}
}
