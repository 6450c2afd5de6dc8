package awsvpc

import (
	"embed"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// The checkpoints were written by the datastore of the AWS VPC CNI 1.23.2 (tools/awsvpc).
//
//go:embed testdata
var testdata embed.FS

// real returns a real checkpoint.
func real(t *testing.T, name string) []byte {
	t.Helper()
	data, err := testdata.ReadFile("testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// written is when the checkpoints of the tests were written.
var written = time.Unix(1_700_000_000, 0)

// shown returns the allocations as text, sorted by address.
func shown(allocations map[netip.Addr]ipam.FileAllocation) (text []string) {
	for _, a := range slices.SortedFunc(maps.Keys(allocations), netip.Addr.Compare) {
		al := allocations[a]
		if al.Address != a {
			text = append(text, fmt.Sprintf("%s is recorded as %s", a, al.Address))
		}
		text = append(text, fmt.Sprintf("%s %s/%s %s %s", a, al.Namespace, al.Pod, al.ContainerID, al.Interface))
	}
	return text
}

func TestRealCheckpointsAreParsed(t *testing.T) {
	for name, want := range map[string][]string{
		"secondary": {"10.0.96.5 default/web-0 c0ffee01 eth0", "10.0.97.6 kube-system/coredns-1 c0ffee02 eth0"},
		"prefixes":  {"10.0.96.16 default/web-0 c0ffee01 eth0", "10.0.96.17 default/web-1 c0ffee02 eth0", "10.0.96.18 default/web-2 c0ffee03 eth0"},
		"ipv6":      {"2600:1f14:1:2:: default/web-0 c0ffee01 eth0"},
		"empty":     nil,
	} {
		c, err := parse(real(t, name), written)
		if err != nil || c.invalid != "" || !slices.Equal(shown(c.allocations), want) {
			t.Errorf("%s: got %q, invalid %q, error %v, want %q", name, shown(c.allocations), c.invalid, err, want)
		}
		if network := c.network; network != networkName && (name != "empty" || network != "") {
			t.Errorf("%s: got network %q", name, network)
		}
		for a, al := range c.allocations {
			if at := al.AllocatedAt.UTC(); at.Year() != 2026 || at.Nanosecond() == 0 {
				t.Errorf("%s: %s: got allocated at %v, want the time of the entry", name, a, at)
			}
		}
	}
}

// entry returns an entry of a checkpoint.
func entry(fields string) string {
	return `{"networkName":"aws-cni","containerID":"c1","ifName":"eth0","allocationTimestamp":1700000100000000000,"metadata":{"k8sPodNamespace":"default","k8sPodName":"web"},` + fields + `}`
}

// checkpointOf returns a checkpoint with the given entries.
func checkpointOf(entries ...string) string {
	return `{"version":"vpc-cni-ipam/1","allocations":[` + strings.Join(entries, ",") + `]}`
}

func TestUnusualEntriesAreParsed(t *testing.T) {
	const web = " default/web c1 eth0"
	for data, want := range map[string]struct{ allocations, network, invalid string }{
		checkpointOf(entry(`"ipv4":"10.0.0.5","ipv6":"fd00::5"`)):                                                    {"10.0.0.5" + web + ", fd00::5" + web, "aws-cni", ""},
		checkpointOf(entry(`"ipv4":"::ffff:10.0.0.5"`)):                                                              {"10.0.0.5" + web, "aws-cni", ""},
		checkpointOf(entry(`"ipv4":"169.254.1.5"`)):                                                                  {"169.254.1.5" + web, "aws-cni", ""},
		checkpointOf(entry(`"ipv4":"10.0.0.5","new":{"a":[1]}`)):                                                     {"10.0.0.5" + web, "aws-cni", ""},
		checkpointOf(entry(`"ipv4":"10.0.0.5","metadata":{"interfacesCount":2}`)):                                    {"10.0.0.5" + web, "aws-cni", ""},
		checkpointOf(`{"ipv4":"10.0.0.5"}`):                                                                          {"10.0.0.5 /  ", "", ""},
		checkpointOf(`{"networkName":"_migrated-from-cri","containerID":"c1","ifName":"unknown","ipv4":"10.0.0.5"}`): {"10.0.0.5 / c1 ", "", ""},
		checkpointOf(entry(`"ipv4":"10.0.0.5"`), entry(`"ipv4":"10.0.0.6","networkName":"b"`), entry(`"ipv4":"10.0.0.7","networkName":"b"`)): {
			"10.0.0.5" + web + ", 10.0.0.6" + web + ", 10.0.0.7" + web, "b", "",
		},
		checkpointOf(entry(`"ipv4":"10.0.0.5","networkName":"b"`), entry(`"ipv4":"10.0.0.6","networkName":"a"`)): {
			"10.0.0.5" + web + ", 10.0.0.6" + web, "a", "",
		},
		checkpointOf(entry(`"ipv4":"10.0.0.5","networkName":"` + strings.Repeat("x", 512) + `"`)): {"10.0.0.5" + web, strings.Repeat("x", 512), ""},
		checkpointOf(entry(`"ipv4":"10.0.0.5","networkName":"` + strings.Repeat("x", 513) + `"`)): {"10.0.0.5" + web, "", ""},
		`{"version":"vpc-cni-ipam/1","allocations":null}`:                                         {"", "", ""},
		`{"version":"vpc-cni-ipam/1"}`:                                                            {"", "", ""},

		checkpointOf(entry(`"ipv4":"10.0.0.5"`), entry(`"ipv4":"mine"`), entry(`"x":1`)): {"10.0.0.5" + web, "aws-cni", "2 of its 3 entries have no valid address"},
		checkpointOf(entry(`"ipv4":"10.0.0.5"`), entry(`"ipv4":7`)): {
			"10.0.0.5" + web, "aws-cni", "entry 1 (container c1) has another format: json: cannot unmarshal number into Go struct field checkpointEntry.ipv4 of type string",
		},
		checkpointOf(entry(`"ipv4":"224.0.0.5"`)):    {"", "aws-cni", "1 of its 1 entries have no valid address"},
		checkpointOf(entry(`"ipv6":"fe80::1%eth0"`)): {"", "aws-cni", "1 of its 1 entries have no valid address"},
		checkpointOf(entry(`"ipv4":"0.0.0.0"`)):      {"", "aws-cni", "1 of its 1 entries have no valid address"},
		checkpointOf(entry(`"ipv4":"10.0.0.5"`), entry(`"ipv4":"10.0.0.5","containerID":"new","allocationTimestamp":1700000200000000000`)): {
			"10.0.0.5 default/web new eth0", "aws-cni", "10.0.0.5 is allocated to containers c1 and new: ipamd does not start with such a file",
		},
		checkpointOf(entry(`"ipv4":"10.0.0.5"`), entry(`"ipv4":"10.0.0.5","containerID":"","allocationTimestamp":1700000000000000000`)): {
			"10.0.0.5" + web, "aws-cni", "10.0.0.5 is allocated to containers c1 and without ID: ipamd does not start with such a file",
		},
	} {
		c, err := parse([]byte(data), written)
		if got := strings.Join(shown(c.allocations), ", "); err != nil || got != want.allocations || c.network != want.network || c.invalid != want.invalid {
			t.Errorf("%.300s: got %q, network %q, invalid %q, error %v, want %+v", data, got, c.network, c.invalid, err, want)
		}
	}
}

func TestTimeOfAnAllocationIsThatOfTheEntryOrOfTheFile(t *testing.T) {
	for timestamp, want := range map[string]time.Time{"1700000100000000001": time.Unix(1_700_000_100, 1), "1": time.Unix(0, 1), "0": written, "-1": written} {
		c, err := parse([]byte(checkpointOf(entry(`"ipv4":"10.0.0.5","allocationTimestamp":`+timestamp))), written)
		if got := c.allocations[netip.MustParseAddr("10.0.0.5")].AllocatedAt; err != nil || !got.Equal(want) {
			t.Errorf("timestamp %s: got %v, error %v, want %v", timestamp, got, err, want)
		}
	}
}

func TestCheckpointThatCannotBeParsedIsAnError(t *testing.T) {
	whole := string(real(t, "secondary"))
	for data, want := range map[string]string{
		"":                         "parse JSON: ",
		whole[:len(whole)/2]:       "parse JSON: ",
		whole + whole:              "parse JSON: ",
		"null":                     "it has no version",
		"{}":                       "it has no version",
		`{"allocations":[]}`:       "it has no version",
		"[]":                       "parse JSON: ",
		`{"version":1}`:            "parse JSON: ",
		checkpointOf("7"):          "parse JSON: ",
		checkpointOf(`{"ipv4":7}`): "parse JSON: ",
		`{"version":"vpc-cni-ipam/2","allocations":[]}`:           `its version is "vpc-cni-ipam/2", and this ipwitness reads only "vpc-cni-ipam/1": look for a newer ipwitness`,
		`{"version":"vpc-cni-ipam/2","allocations":{"eni-1":[]}}`: `its version is "vpc-cni-ipam/2"`,
		`{"version":""}`: "it has no version",
		`{"version":"\u001b[31m` + strings.Repeat("x", 100) + `"}`: `its version is "[31m` + strings.Repeat("x", 57) + `…"`,
	} {
		if c, err := parse([]byte(data), written); err == nil || !strings.HasPrefix(err.Error(), want) || c.allocations != nil {
			t.Errorf("%.100s: got %v, error %v, want %q", data, c, err, want)
		}
	}
}

func FuzzCheckpoint(f *testing.F) {
	for _, name := range []string{"secondary", "ipv6", "empty"} {
		data, err := testdata.ReadFile("testdata/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parse(data, written)
		if (err == nil) != (c.allocations != nil) {
			t.Errorf("got %v and error %v", c, err)
		}
		for a, al := range c.allocations {
			if a != al.Address || !a.IsValid() || a.Is4In6() || a.Zone() != "" {
				t.Errorf("got %+v for %s", al, a)
			}
		}
		_, _ = branchAddresses(data)
	})
}
