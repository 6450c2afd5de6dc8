package explain_test

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/tests/canary"
)

// No name in any field makes a command run anything else. The names in this test were not
// validated.
func TestNoNameRunsACommand(t *testing.T) {
	cage := canary.New(t)
	checkText := func(text explain.FindingText) {
		check(cage, text.Remedy)
		for _, fix := range text.Fixes {
			cage.Readable("a command", fix.Command)
			cage.Script(fix.Command)
		}
	}
	for _, payload := range []string{"$(:>c)", "';:>c;'", "x\n:>c\n", "--evil=1", "x\x1b[2J"} {
		for _, name := range slices.Sorted(maps.Keys(findings())) {
			for n, more := 0, true; more; n++ {
				f := findings()[name]
				more = poison(&f, n, payload)
				checkText(explain.Finding(&f, verdict.PoolUse{}))
				if f.Pool != nil {
					for _, kind := range []string{verdict.FindingIPAMStateLost, verdict.FindingIPAMUnreadable, verdict.FindingPoolExhaustion} {
						checkText(ofPool(kind, f.Pool, verdict.PoolUse{Size: 9, Allocated: 9, Leaked: 1}, nil))
					}
				}
			}
		}
		for n, more := 0, true; more; n++ {
			a := verdict.Side{Node: "n1", Network: "a", Config: "c", Device: "d", IPAM: "i", Source: verdict.SidePool}
			b := a
			more = poison(&a, n, payload)
			for _, kind := range []string{verdict.FindingPodCIDROverlap, verdict.FindingRangesOverlap} {
				checkText(overlap(kind, a, b))
				checkText(overlap(kind, b, a))
			}
			for _, source := range []verdict.SideSource{verdict.SideAddress, verdict.SideHeld} {
				a.Source = source
				checkText(overlap(verdict.FindingPodCIDROverlap, a, b))
			}
		}
		if script := cage.Sings(); script != "" {
			t.Errorf("got a command that executes %q:\n%s", payload, script)
		}
	}
}

// check runs the commands of a remedy, including the ones in its text.
func check(cage *canary.Cage, remedy []advice.Action) {
	for _, a := range remedy {
		cage.Readable("a step", a.Text+a.Command+a.Node)
		cage.Advice(a.Text)
		cage.Script(a.Command)
		for _, choice := range a.Choice {
			cage.Readable("a choice", choice.When)
			check(cage, choice.Actions)
		}
	}
}

// poison replaces the nth string that is reachable from a value with a payload. It returns false if
// there are fewer strings.
func poison(of any, n int, payload string) bool {
	p := &poisoner{left: n, payload: payload, been: map[uintptr]bool{}}
	p.walk(reflect.ValueOf(of))
	return p.left < 0
}

type poisoner struct {
	left    int
	payload string
	been    map[uintptr]bool
}

func (p *poisoner) walk(v reflect.Value) {
	if p.left < 0 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() && !p.been[v.Pointer()] {
			p.been[v.Pointer()] = true
			p.walk(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			p.walk(v.Index(i))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			p.walk(v.MapIndex(k))
		}
	case reflect.Struct:
		for _, f := range v.Fields() {
			p.walk(f)
		}
	case reflect.String:
		p.text(v)
	}
}

func (p *poisoner) text(v reflect.Value) {
	if !v.CanAddr() {
		return
	}
	at := reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem() // including unexported fields
	switch at.Interface().(type) {
	case verdict.MAC:
	case verdict.Who:
		w := at.Interface().(verdict.Who).Workload()
		p.walk(reflect.ValueOf(&w))
		at.Set(reflect.ValueOf(w.Who()))
	default:
		if p.left--; p.left < 0 {
			at.SetString(p.payload)
		}
	}
}
