package kube

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// customKinds returns the kinds of custom resources that IPAMs are read from, and ipwitness's own.
func customKinds() (kinds []ipam.Kind) {
	kinds = append(kinds, acknowledgementKind)
	for _, m := range registry.All {
		kinds = append(kinds, m.Kinds()...)
	}
	return kinds
}

func versionOf(k ipam.Kind) schema.GroupVersion {
	return schema.GroupVersion{Group: k.Group, Version: k.Version}
}

// object is a custom resource. Only the common fields are decoded; its IPAM decodes the others.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec"`
	Status            json.RawMessage `json:"status"`
	// Objects without a spec have their fields here.
	Endpoints          json.RawMessage `json:"endpoints"`
	EndpointsNamespace string          `json:"namespace"`
	AddressType        string          `json:"addressType"`
}

// DeepCopyObject implements runtime.Object. A shallow copy is enough, because objects never
// change.
func (o *object) DeepCopyObject() runtime.Object {
	same := *o
	return &same
}

// objects is a page of custom resources.
type objects struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []object `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (o *objects) DeepCopyObject() runtime.Object {
	same := *o
	return &same
}

func newCustomCodecs() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	for _, k := range customKinds() {
		gv := versionOf(k)
		scheme.AddKnownTypeWithName(gv.WithKind(k.Name), &object{})
		scheme.AddKnownTypeWithName(gv.WithKind(k.Name+"List"), &objects{})
		metav1.AddToGroupVersion(scheme, gv)
	}
	return serializer.NewCodecFactory(scheme)
}
