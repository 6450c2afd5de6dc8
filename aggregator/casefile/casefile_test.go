package casefile

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// filler sets every field of a value. Each string is different.
type filler struct{ n int }

func (f *filler) fill(v reflect.Value) {
	f.n++
	switch into := v.Addr().Interface().(type) {
	case *netip.Addr:
		*into = netip.AddrFrom4([4]byte{10, 0, byte(f.n >> 8), byte(f.n)})
		return
	case *netip.AddrPort:
		*into = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(f.n >> 8), byte(f.n)}), 80)
		return
	case *netip.Prefix:
		*into = netip.MustParsePrefix("10.0.0.0/8")
		return
	case *verdict.MAC:
		*into = verdict.MAC([]byte{0x02, 0xca, 0x4a, 0x12, byte(f.n >> 8), byte(f.n)})
		return
	case *verdict.Who:
		var w verdict.Workload
		f.fill(reflect.ValueOf(&w).Elem())
		*into = w.Who()
		return
	case *verdict.Stamp:
		*into = verdict.Stamp(f.n)
		return
	case *time.Duration:
		*into = time.Duration(f.n)
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(fmt.Sprintf("text%d", f.n))
	case reflect.Uint8:
		v.SetUint(1)
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(f.n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(f.n))
	case reflect.Float64:
		v.SetFloat(float64(f.n))
	case reflect.Array:
		for i := range v.Len() {
			f.fill(v.Index(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.Slice:
		n := 2
		if v.Type().Elem() == reflect.TypeFor[verdict.Owner]() {
			n = 1 // each has all records
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			f.fill(v.Index(i))
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			f.fill(field)
		}
	default:
		panic(v.Type())
	}
}

// full returns a file in which every field is set.
func full() *File {
	f := &filler{}
	out := &File{Version: "v1.2.3", Policy: &verdict.Policy{}, Case: &verdict.Case{}}
	f.fill(reflect.ValueOf(out.Policy).Elem())
	f.fill(reflect.ValueOf(out.Case).Elem())
	return out
}

func TestNothingIsLost(t *testing.T) {
	f := full()
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
