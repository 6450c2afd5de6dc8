package verdict_test

import (
	"reflect"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/canary"
)

// No name makes a command run anything else, whatever field the name is in. The names here have
// not been checked by a form.
func TestNoNameRunsACommand(t *testing.T) {
	cage := canary.New(t)
	for _, payload := range []string{"$(:>c)", "';:>c;'", "x\n:>c\n", "--evil=1", "x\x1b[2J"} {
		for _, s := range situations {
			for n, more := 0, true; more; n++ {
				addr := s.addr
				if addr == "" {
					addr = "10.244.1.5"
				}
				w := newWorld(addr)
				s.build(w)
				more = poison(w, n, payload)
				for _, c := range w.judge().Conflicts {
					check(cage, c.Remedy)
				}
			}
		}
		if script := cage.Sings(); script != "" {
			t.Errorf("got a command that runs what %q says:\n%s", payload, script)
		}
	}
}

// check runs the commands of a remedy, including those in its text.
func check(cage *canary.Cage, remedy []verdict.Action) {
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

// poison puts a payload in place of the nth string that can be reached from a value. It returns
// false if there are fewer strings.
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
