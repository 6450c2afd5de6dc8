package casefile

import (
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// filler sets every field of a value. Each string is different.
type filler struct {
	n       int
	strings []string
	macs    []string
}

func (f *filler) fill(v reflect.Value, name string) {
	f.n++
	switch into := v.Addr().Interface().(type) {
	case *netip.Addr: // derived from the hardware address 02:ca:4a:…
		*into = netip.AddrFrom16([16]byte{0xfe, 0x80, 8: 0x00, 0xca, 0x4a, 0xff, 0xfe, 0x12, byte(f.n >> 8), byte(f.n)})
		f.strings = append(f.strings, into.String())
		return
	case *netip.Prefix:
		*into = netip.MustParsePrefix("10.0.0.0/8")
		return
	case *verdict.MAC:
		*into = verdict.MAC([]byte{0x02, 0xca, 0x4a, 0x12, byte(f.n >> 8), byte(f.n)})
		f.macs = append(f.macs, into.String())
		return
	case *verdict.Who:
		var w verdict.Workload
		f.fill(reflect.ValueOf(&w).Elem(), name)
		*into = w.Who()
		return
	case *time.Duration:
		*into = time.Duration(f.n)
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		s := fmt.Sprintf("canary%d", f.n)
		switch name {
		case "Namespace.ID", "Owner.ID", "Past.Owner", "Member.ID", "Exclusion.Victims":
			s = fmt.Sprintf("canary%d/%d/canary%d/02:ca:4a:99:00:01", f.n, f.n, f.n)
		case "Namespace.Intended":
			s = fmt.Sprintf("10.0.0.1 canary%d canary%d\n10.0.0.2 canary%d ", f.n, f.n, f.n)
		case "Workload.Sources":
			s = fmt.Sprintf("canary%d=canary%d", f.n, f.n)
		case "Workload.Process":
			s = fmt.Sprintf("canary%d (42)", f.n)
		case "Node.Netns", "NodeKey.Netns", "Namespace.Netns":
			s = fmt.Sprint(f.n)
		}
		f.strings = append(f.strings, s)
		v.SetString(s)
	case reflect.Uint8:
		v.SetUint(1)
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(f.n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(f.n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), name)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			f.fill(v.Index(i), name)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if at := v.Type().Name() + "."; !leftOut[at+nameOf(v.Type().Field(i).Name)] {
				f.fill(v.Field(i), at+v.Type().Field(i).Name)
			}
		}
	default:
		panic(v.Type())
	}
}

// full returns a file in which every field is set.
func full() (*File, *filler) {
	f := &filler{}
	out := &File{Version: "v1.2.3", Policy: &verdict.Policy{}, Case: &verdict.Case{}}
	f.fill(reflect.ValueOf(out.Policy).Elem(), "")
	f.fill(reflect.ValueOf(out.Case).Elem(), "")
	return out, f
}

func TestNothingIsLost(t *testing.T) {
	f, _ := full()
	data, err := Encode(f)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(data)
	if err != nil {
		t.Fatalf("%v in\n%s", err, data)
	}
	if !reflect.DeepEqual(got, f) {
		t.Errorf("got\n%+v\nwant\n%+v", got, f)
	}
}

// TestPseudonymsLeaveNoName fills every field of a case with names. Fields
// with values that only package verdict chooses are not names.
func TestPseudonymsLeaveNoName(t *testing.T) {
	f, filled := full()
	data, err := Encode(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range append(filled.strings, filled.macs...) {
		quoted := strings.ReplaceAll(s, "\n", `\n`)
		if !strings.Contains(string(data), quoted) {
			t.Errorf("the case has no %q: want it in there at first", s)
		}
	}
	p, err := Pseudonymise(f)
	if err != nil {
		t.Fatal(err)
	}
	if data, err = Encode(p); err != nil {
		t.Fatal(err)
	}
	ours := regexp.MustCompile(`"(rule|kind)": "canary\d+"`)
	for line := range strings.Lines(ours.ReplaceAllString(string(data), "")) {
		if strings.Contains(line, "canary") || strings.Contains(line, "ca:4a") {
			t.Errorf("got a name in %s", line)
		}
	}
}
