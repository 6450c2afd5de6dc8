package kube

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/proto/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// hostile has strings that do harm if they are printed unchanged.
var hostile = []string{"a\x1b[2J", "a\r\nb", "a\u202eb", "a\x9b1m", "a\xff", "a\u200b", strings.Repeat("x", 5000)}

// texts calls each for all strings in a value, with their paths.
func texts(at string, v reflect.Value, each func(at string, text reflect.Value)) {
	switch v.Kind() {
	case reflect.String:
		each(at, v)
	case reflect.Pointer:
		if !v.IsNil() {
			texts(at, v.Elem(), each)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				texts(at+"."+f.Name, v.Field(i), each)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			texts(at+"[]", v.Index(i), each)
		}
	}
}

// All strings that leave the mirror have passed through a form. This fails for new fields
// without a form.
func TestTextsOfObjectsHaveForms(t *testing.T) {
	for _, text := range hostile {
		fill := func(_ string, s reflect.Value) { s.SetString(text) }
		pool := &verdict.Pool{Pool: ipam.Pool{Served: ipam.Served{Networks: make([]string, 1)}}}
		al := &verdict.Allocation{}
		object := &verdict.PodObject{}
		related := &pb.Related{}
		for _, v := range []any{pool, al, object, related} {
			texts("", reflect.ValueOf(v), fill)
		}
		correctPool(pool)
		correctAllocation(al)
		correctPod(object)
		correctRelated(related)
		for _, v := range []any{pool, al, object, related} {
			texts(reflect.TypeOf(v).String(), reflect.ValueOf(v), func(at string, s reflect.Value) {
				if !advice.Printable(s.String()) || len(s.String()) > 1024 {
					t.Errorf("got %s %q, want it corrected", at, s)
				}
			})
		}
	}
}

// Strings that users put into pods and custom resources pass through the forms.
func TestHostileObjects(t *testing.T) {
	f := newFakeAPI(t)
	c := f.open()
	for _, text := range append(hostile, "$(reboot)", "--server=x", "'; reboot; '") {
		p := &corev1.Pod{}
		yes := true
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: text}
		p.Labels = map[string]string{"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": text}
		p.Name, p.Namespace, p.UID, p.Spec.NodeName, p.Status.Phase = text, text, "u", text, corev1.PodPhase(text)
		p.OwnerReferences = []metav1.OwnerReference{{Kind: text, Name: text, Controller: &yes}}
		_, r := c.pods.read(p)
		texts("pod", reflect.ValueOf(&r.PodObject), func(at string, s reflect.Value) {
			if strings.ContainsAny(s.String(), "$;'\x1b\r\n") || strings.HasPrefix(s.String(), "-") && !advice.Withheld(advice.Quote(s.String())) || !advice.Printable(s.String()) {
				t.Errorf("got %s %q of %q", at, s, text)
			}
		})
		if alias := r.more; alias != nil && !form.ID.Has(alias.alias) {
			t.Errorf("got the alias %q of %q", alias.alias, text)
		}

		m := newPublisher(c, "test")
		m.Put(ipam.Pool{Name: text, Served: ipam.Served{Network: text}, Config: text, Problem: text}, text, false)
		m.Allocate(text, ipam.Allocation{Node: text, Namespace: text, Pod: text, ContainerID: text, Interface: text, Location: text}, 0)
		changes, _ := c.take()
		if len(changes.IPAM) != 2 {
			t.Fatalf("got %d changes of %q, want a pool and an allocation", len(changes.IPAM), text)
		}
		for _, change := range changes.IPAM {
			texts("change", reflect.ValueOf(change), func(at string, s reflect.Value) {
				if !advice.Printable(s.String()) || len(s.String()) > 1024 {
					t.Errorf("got %s %q of %q", at, s, text)
				}
			})
		}
	}
}
