package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"

	"github.com/ipwitness/ipwitness/ipam"
)

// acknowledgementKind is the custom resource of acknowledgements. Its definition is in the chart.
var acknowledgementKind = ipam.Kind{
	Group: "ipwitness.io", Version: "v1alpha1", Resource: "addressconflictacknowledgements", Name: "AddressConflictAcknowledgement",
}

const (
	acknowledgementFeed = "acknowledgements"
	// maxAcknowledgements is the maximum number of acknowledgements.
	maxAcknowledgements = 10000
	// MaxReason is the maximum length of a reason in bytes.
	MaxReason = 1024
	// LongestAcknowledgement is one year, even if it is a leap year.
	LongestAcknowledgement = 366 * 24 * time.Hour
	// mostAhead is how far the clock of the replica that wrote an acknowledgement may be ahead.
	mostAhead = time.Hour
)

// An Acknowledgement is an AddressConflictAcknowledgement, which all replicas read. An aggregator without
// replicas keeps it in a file, in JSON.
type Acknowledgement struct {
	// Conflict is the id of the conflict, and the name of the object.
	Conflict string     `json:"conflict"`
	Address  netip.Addr `json:"address"`
	// Reason and By are why and by whom the conflict was acknowledged, At is when, and Expires until when.
	Reason  string    `json:"reason"`
	By      string    `json:"acknowledgedBy,omitempty"`
	At      time.Time `json:"acknowledgedAt"`
	Expires time.Time `json:"expiresAt"`
	// Owners are the owners of the conflict when it was acknowledged; nil if the object was written by
	// hand.
	Owners []string `json:"owners"`
	// Version is the resource version of the object.
	Version string `json:"-"`
}

type acknowledgementSpec struct {
	Address        string     `json:"address"`
	Reason         string     `json:"reason"`
	AcknowledgedBy string     `json:"acknowledgedBy"`
	AcknowledgedAt *time.Time `json:"acknowledgedAt,omitempty"`
	ExpiresAt      time.Time  `json:"expiresAt"`
	Owners         []string   `json:"owners"`
}

// acknowledgementRecord is an object that may be invalid.
type acknowledgementRecord struct {
	Acknowledgement
	// problem is why the object is ignored; empty if it is not.
	problem string
}

type acknowledgements struct {
	ipam.Mirror[*ipam.Object, acknowledgementRecord]
	// listed is set when all of them are known.
	listed bool
}

func newAcknowledgements(c *Cluster) acknowledgements {
	return acknowledgements{Mirror: ipam.Mirror[*ipam.Object, acknowledgementRecord]{
		Read:  readAcknowledgement,
		Limit: maxAcknowledgements,
		Changed: func(ipam.Key, *acknowledgementRecord, *acknowledgementRecord) {
			c.pending.acknowledgements = true
		},
		// The objects that are ignored are reported, with one as an example.
		Settled: func() {
			text, ignored := "", 0
			all := c.acknowledgements.Records
			for _, at := range slices.SortedFunc(maps.Keys(all), func(x, y ipam.Key) int { return strings.Compare(x.Name, y.Name) }) {
				if r := all[at]; r.problem != "" {
					if ignored++; ignored == 1 {
						text = fmt.Sprintf("%s %s/%s is ignored, so its conflict is reported: %s", acknowledgementKind.Name, at.Namespace, at.Name, r.problem)
					}
				}
			}
			if ignored > 1 {
				text += fmt.Sprintf(" (and %d others)", ignored-1)
			}
			c.problem(acknowledgementFeed+" in an unexpected form", text)
		},
	}}
}

func readAcknowledgement(o *ipam.Object) (ipam.Key, *acknowledgementRecord) {
	r := &acknowledgementRecord{Acknowledgement: Acknowledgement{Conflict: o.Name, Version: o.Version}}
	var spec acknowledgementSpec
	if err := ipam.Part(o.Spec, "spec", &spec); err != nil {
		r.problem = err.Error()
		return o.Key(), r
	}
	r.Reason, r.By, r.Expires, r.Owners = ipam.Plain(spec.Reason), ipam.Plain(spec.AcknowledgedBy), spec.ExpiresAt, spec.Owners
	if r.At = o.Created; spec.AcknowledgedAt != nil {
		r.At = *spec.AcknowledgedAt
	}
	if spec.Address != "" {
		a, err := netip.ParseAddr(spec.Address)
		if err != nil {
			r.problem = fmt.Sprintf("spec.address %q is not an address", ipam.Cut(ipam.Plain(spec.Address), ipam.MaxMessage))
		}
		r.Address = a
	}
	switch {
	case r.Reason == "":
		r.problem = "spec.reason is missing: give the reason why the conflict is acknowledged"
	case len(r.Reason) > MaxReason:
		r.problem = fmt.Sprintf("spec.reason has %d bytes, but the limit is %d", len(r.Reason), MaxReason)
	case r.Expires.IsZero():
		r.problem = "spec.expiresAt is missing: give a time like 2030-01-31T12:00:00Z"
	case r.At.After(time.Now().Add(mostAhead)):
		r.problem = "spec.acknowledgedAt is in the future: omit it"
	case r.Expires.Sub(r.At) > LongestAcknowledgement:
		r.problem = "spec.expiresAt is more than a year after the acknowledgement: choose an earlier time, and acknowledge the conflict again then"
	}
	return o.Key(), r
}

func (c *Cluster) acknowledgementClient() *rest.RESTClient {
	return c.clients.custom[versionOf(acknowledgementKind)]
}

// SharesAcknowledgements reports whether acknowledgements are kept as objects, because there may be several
// replicas.
func (c *Cluster) SharesAcknowledgements() bool { return c != nil && c.election.name != "" }

// Acknowledgements returns all valid acknowledgements. known is set when they have been listed.
func (c *Cluster) Acknowledgements() (all []Acknowledgement, known bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, r := range c.acknowledgements.Records {
		if r.problem == "" {
			all = append(all, r.Acknowledgement)
		}
	}
	return all, c.acknowledgements.listed
}

// Acknowledge writes an acknowledgement, and returns the version of the object.
func (c *Cluster) Acknowledge(ctx context.Context, a *Acknowledgement) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	spec := acknowledgementSpec{
		Address: a.Address.String(), Reason: a.Reason, AcknowledgedBy: a.By, AcknowledgedAt: &a.At, ExpiresAt: a.Expires, Owners: a.Owners,
	}
	made := new(object)
	body, err := json.Marshal(map[string]any{
		"apiVersion": acknowledgementKind.Group + "/" + acknowledgementKind.Version, "kind": acknowledgementKind.Name,
		"metadata": map[string]any{"namespace": c.election.namespace, "name": a.Conflict}, "spec": spec,
	})
	if err != nil {
		return "", err
	}
	client, resource := c.acknowledgementClient(), acknowledgementKind.Resource
	err = client.Post().Namespace(c.election.namespace).Resource(resource).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Into(made)
	if apierrors.IsAlreadyExists(err) {
		if body, err = json.Marshal(map[string]any{"spec": spec}); err != nil {
			return "", err
		}
		err = client.Patch(types.MergePatchType).Namespace(c.election.namespace).Resource(resource).Name(a.Conflict).Body(body).Do(ctx).Into(made)
	}
	if err != nil {
		return "", fmt.Errorf("write %s: %w", acknowledgementKind.Name, err)
	}
	return made.ResourceVersion, nil
}

// Withdraw deletes an acknowledgement. If a version is given, a later one is left.
func (c *Cluster) Withdraw(ctx context.Context, conflict, version string) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	body := []byte("{}")
	if version != "" {
		var err error
		if body, err = json.Marshal(metav1.DeleteOptions{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, Preconditions: &metav1.Preconditions{ResourceVersion: &version},
		}); err != nil {
			return err
		}
	}
	err := c.acknowledgementClient().Delete().Namespace(c.election.namespace).Resource(acknowledgementKind.Resource).Name(conflict).
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	if err == nil || apierrors.IsNotFound(err) || version != "" && apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("delete %s: %w", acknowledgementKind.Name, err)
}

// Older reports whether a resource version is older than another one.
func Older(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}
