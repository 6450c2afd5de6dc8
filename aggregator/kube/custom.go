package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// kind is a kind of custom resource.
type kind struct {
	group, version, resource, name string
}

// The custom resources that ipwitness reads.
var (
	whereaboutsPools        = kind{"whereabouts.cni.cncf.io", "v1alpha1", "ippools", "IPPool"}
	whereaboutsReservations = kind{"whereabouts.cni.cncf.io", "v1alpha1", "overlappingrangeipreservations", "OverlappingRangeIPReservation"}
	attachmentDefinitions   = kind{"k8s.cni.cncf.io", "v1", "network-attachment-definitions", "NetworkAttachmentDefinition"}
	calicoPools             = kind{"crd.projectcalico.org", "v1", "ippools", "IPPool"}
	calicoBlocks            = kind{"crd.projectcalico.org", "v1", "ipamblocks", "IPAMBlock"}
	calicoAffinities        = kind{"crd.projectcalico.org", "v1", "blockaffinities", "BlockAffinity"}
	calicoHandles           = kind{"crd.projectcalico.org", "v1", "ipamhandles", "IPAMHandle"}
	calicoReservations      = kind{"crd.projectcalico.org", "v1", "ipreservations", "IPReservation"}
	ciliumNodes             = kind{"cilium.io", "v2", "ciliumnodes", "CiliumNode"}
	ciliumEndpoints         = kind{"cilium.io", "v2", "ciliumendpoints", "CiliumEndpoint"}

	customKinds = []kind{
		whereaboutsPools, whereaboutsReservations, attachmentDefinitions, calicoPools, calicoBlocks, calicoAffinities, calicoHandles, calicoReservations,
		calicoPools.native(), calicoBlocks.native(), calicoAffinities.native(), calicoHandles.native(), calicoReservations.native(),
		ciliumNodes, ciliumEndpoints,
	}
)

// calicoNative is the group and version that newer versions of Calico use for the objects of
// crd.projectcalico.org. Like Calico itself (UsingV3CRDs in libcalico-go/lib/backend/k8s),
// ipwitness uses it only if crd.projectcalico.org is not served at all. Otherwise Calico's own
// API server serves this group, from the objects of crd.projectcalico.org.
var calicoNative = schema.GroupVersion{Group: "projectcalico.org", Version: "v3"}

// native returns the kind of the same objects in Calico's newer group. Kinds of other projects
// are returned unchanged.
func (k kind) native() kind {
	if k.group == calicoPools.group {
		k.group, k.version = calicoNative.Group, calicoNative.Version
	}
	return k
}

// String returns the name of the resource as kubectl and RBAC use it.
func (k kind) String() string { return k.resource + "." + k.group }

func (k kind) gv() schema.GroupVersion {
	return schema.GroupVersion{Group: k.group, Version: k.version}
}

// object is a custom resource. Only the common fields are decoded. Readers decode the parts
// that they use, so that one malformed object does not break the listing.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec"`
	Status            json.RawMessage `json:"status"`
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

// newCustomCodecs returns the codecs of custom resources.
func newCustomCodecs() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	known := make(map[schema.GroupVersion]bool)
	for _, k := range customKinds {
		scheme.AddKnownTypeWithName(k.gv().WithKind(k.name), &object{})
		scheme.AddKnownTypeWithName(k.gv().WithKind(k.name+"List"), &objects{})
		if !known[k.gv()] {
			metav1.AddToGroupVersion(scheme, k.gv())
			known[k.gv()] = true
		}
	}
	return serializer.NewCodecFactory(scheme)
}

// part decodes one part of an object. name identifies the part in the error.
func part(raw json.RawMessage, name string, into any) error {
	if len(raw) == 0 {
		return fmt.Errorf("it has no %s", name)
	}
	err := json.Unmarshal(raw, into)
	if odd := (*json.UnmarshalTypeError)(nil); errors.As(err, &odd) {
		return fmt.Errorf("its %s is not as we know it: /%s is a JSON %s", name, strings.ReplaceAll(odd.Field, ".", "/"), odd.Value)
	}
	if err != nil {
		return fmt.Errorf("its %s is not as we know it: %w", name, err)
	}
	return nil
}
