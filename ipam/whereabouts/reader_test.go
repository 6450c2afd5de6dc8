package whereabouts

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
)

func TestRangesOfNetworks(t *testing.T) {
	read := func(config string) *network {
		_, n, _ := readNetwork(&ipam.Object{Name: "nad", Spec: []byte(`{"config":` + config + `}`)})
		return n
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
			`"{\"name\":\"n\",\"ipam\":{\"type\":\"whereabouts\",\"range\":\"10.0.0.0/24\",\"range_start\":\"10.0.0.20\",\"node_slice_size\":\"/28\"}}"`,
			"node-1-10.0.0.16-28", "10.0.0.16/28", "n   10.0.0.17-10.0.0.30",
		},
		"a slice that is the whole range": {
			`"{\"name\":\"n\",\"ipam\":{\"type\":\"whereabouts\",\"range\":\"10.0.0.0/24\",\"node_slice_size\":\"/24\"}}"`,
			"node-1-10.0.0.0-24", "10.0.0.0/24", "n   10.0.0.1-10.0.0.254",
		},
		"a slice of a named network": {
			`"{\"name\":\"n\",\"ipam\":{\"type\":\"whereabouts\",\"network_name\":\"blue\",\"range\":\"10.0.0.0/24\",\"node_slice_size\":\"28\"}}"`,
			"blue-node-1-10.0.0.16-28", "10.0.0.16/28", "n   10.0.0.17-10.0.0.30",
		},
		"a slice of another network": {
			`"{\"name\":\"n\",\"ipam\":{\"type\":\"whereabouts\",\"network_name\":\"blue\",\"range\":\"10.0.0.0/24\",\"node_slice_size\":\"/28\"}}"`,
			"red-node-1-10.0.0.16-28", "10.0.0.16/28", "",
		},
		"a slice without node": {
			`"{\"name\":\"n\",\"ipam\":{\"type\":\"whereabouts\",\"network_name\":\"blue\",\"range\":\"10.0.0.0/24\",\"node_slice_size\":\"/28\"}}"`,
			"blue-10.0.0.16-28", "10.0.0.16/28", "",
		},
		"a slice of another range": {
			`"{\"name\":\"n\",\"ipam\":{\"type\":\"whereabouts\",\"range\":\"10.0.0.0/24\",\"node_slice_size\":\"/28\"}}"`,
			"node-1-10.0.1.16-28", "10.0.1.16/28", "",
		},
		"a slice of another size": {
			`"{\"name\":\"n\",\"ipam\":{\"type\":\"whereabouts\",\"range\":\"10.0.0.0/24\",\"node_slice_size\":\"/28\"}}"`,
			"node-1-10.0.0.16-29", "10.0.0.16/29", "",
		},
		"another range": {
			`"{\"name\":\"n\",\"ipam\":{\"type\":\"whereabouts\",\"range\":\"10.0.0.0/24\"}}"`,
			"10.0.0.0-24", "10.0.1.0/24", "",
		},
		"a range that is none": {
			`"{\"name\":\"n\",\"ipam\":{\"type\":\"whereabouts\",\"range\":\"10.0.0.0\",\"ipRanges\":[{\"range\":\"10.0.0.0/29\"}]}}"`,
			"10.0.0.0-29", "10.0.0.0/29", "n   10.0.0.1-10.0.0.6",
		},
		"another IPAM":            {`"{\"name\":\"n\",\"ipam\":{\"type\":\"host-local\",\"range\":\"10.0.0.0/24\"}}"`, "10.0.0.0-24", "10.0.0.0/24", ""},
		"a file on the nodes":     {`""`, "10.0.0.0-24", "10.0.0.0/24", ""},
		"what whereabouts is not": {`"{\"ipam\":7}"`, "10.0.0.0-24", "10.0.0.0/24", ""},
	} {
		got := ""
		prefix := netip.MustParsePrefix(test.prefix)
		if n := read(test.config); n != nil {
			for _, r := range n.ranges {
				if r.serves(n, test.pool, prefix) {
					got = n.Name + " " + n.plugin + " " + n.device
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

func TestNetworksWithoutRanges(t *testing.T) {
	for config, want := range map[string]int{
		`{"name":"n","ipam":{"type":"whereabouts","range":"10.0.0.0/24","ipRanges":[{"range":"nowhere"},{"range":"fd00::/64"}]}}`: 2,
		`{"name":"n","ipam":{"type":"whereabouts"}}`:                     0,
		`{"name":"n","ipam":{"type":"whereabouts","range":"nowhere"}}`:   0,
		`{"name":7,"ipam":{"type":"whereabouts","range":"10.0.0.0/24"}}`: 0,
		``: -1,
		`{"name":"n","ipam":{"type":"host-local","range":"10.0.0.0/24"}}`:     0,
		`{"name":"n","ipam":{"type":"other","gateway":["10.0.0.1"]}}`:         0, // another form than that of whereabouts
		`{"name":"n","ipam":{"type":"whereabouts","range":"10.0.0.0/24"}}`:    1,
		`{"plugins":[{"ipam":{"type":"whereabouts","range":"10.0.0.0/24"}}]}`: 1,
	} {
		got := -1
		if _, n, _ := readNetwork(&ipam.Object{Name: "nad", Spec: []byte(`{"config":` + strconv.Quote(config) + `}`)}); n != nil {
			got = len(n.ranges)
		}
		if got != want {
			t.Errorf("%s: got %d ranges, want %d", config, got, want)
		}
	}
}

// The name of a reservation is the network, a dash, and the address without colons.
func TestNamesOfReservations(t *testing.T) {
	pools := func(b *published, more ...*published) *reader {
		r := &reader{published: make(map[ipam.Key]*published)}
		for i, b := range append(more, b) {
			r.published[ipam.Key{Namespace: "w", Name: strconv.Itoa(i)}] = b
		}
		r.reindex()
		return r
	}
	of := func(r *reader, namespace, name string) string {
		var all []string
		for at, addr := range r.poolsOf(ipam.Key{Namespace: namespace, Name: name}) {
			all = append(all, addr.String()+" of "+r.published[at].network+" "+r.published[at].prefix.String())
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	blue := pools(&published{network: "blue", prefix: netip.MustParsePrefix("10.0.0.0/24")})
	for name, want := range map[string]string{
		"10.0.0.5": "", "blue-10.0.0.5": "10.0.0.5 of blue 10.0.0.0/24", "blue-fd00--5": "", "bluest-10.0.0.5": "", "blue-10.1.0.5": "", "blue-": "",
	} {
		if got := of(blue, "w", name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if got := of(blue, "other", "blue-10.0.0.5"); got != "" {
		t.Errorf("in another namespace: got %s", got)
	}
	many := pools(
		&published{prefix: netip.MustParsePrefix("fd00::/64")},
		&published{prefix: netip.MustParsePrefix("fd00::/120")},
		&published{prefix: netip.MustParsePrefix("fd00:0:0:1::/64")},
		&published{prefix: netip.MustParsePrefix("10.0.0.0/24")},
		&published{network: "light-blue", prefix: netip.MustParsePrefix("fd00::/64")},
		&published{network: "light", prefix: netip.MustParsePrefix("fd00::/64")},
		&published{network: "light-", prefix: netip.MustParsePrefix("10.0.0.0/24")},
	)
	for name, want := range map[string]string{
		normalized("fd00::5"):   "fd00::5 of  fd00::/120, fd00::5 of  fd00::/64",
		normalized("fd00::"):    "fd00:: of  fd00::/120, fd00:: of  fd00::/64",
		normalized("fd00::500"): "fd00::500 of  fd00::/64",
		normalized("fd01::5"):   "",
		"10.0.0.5":              "10.0.0.5 of  10.0.0.0/24",
		// The format of later versions.
		"fd00-0000-0000-0001-0000-0000-0000-0005": "fd00:0:0:1::5 of  fd00:0:0:1::/64",
		"light-blue-fd00--5":                      "fd00::5 of light-blue fd00::/64",
		"light-fd00--5":                           "fd00::5 of light fd00::/64",
		"light_fd00--5":                           "",
		"light--10.0.0.5":                         "10.0.0.5 of light- 10.0.0.0/24",
		"blue-fd00--5":                            "",
	} {
		if got := of(many, "w", name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// A caller may stop at any pool.
func TestFirstPoolOfAReservation(t *testing.T) {
	r := &reader{published: map[ipam.Key]*published{
		{Name: "a"}: {prefix: netip.MustParsePrefix("10.0.0.0/24")}, {Name: "b"}: {prefix: netip.MustParsePrefix("10.0.0.0/16")},
	}}
	r.reindex()
	n := 0
	for range r.poolsOf(ipam.Key{Name: "10.0.0.5"}) {
		n++
		break
	}
	if n != 1 {
		t.Errorf("got %d pools, want the first of two", n)
	}
}

func TestSizesOfSlices(t *testing.T) {
	for text, want := range map[string]int{"/26": 26, "26": 26, "/109": 109, "": 0, "/": 0, "x": 0, "2x": 0, "2-": 0, "99999999999999999999": 0} {
		if got := sliceOf(text); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}
