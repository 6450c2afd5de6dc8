package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const (
	// toldSuffix is added to the name of the Lease for that of the ConfigMap.
	toldSuffix = "-told"
	// leaderNote is the annotation with the identity of the replica that wrote the ConfigMap.
	leaderNote = "ipwitness/leader"
)

// errNotLeading is the error of a replica that does not lead.
var errNotLeading = errors.New("another replica leads")

// Told is a ConfigMap with what each exporter has told (export.Shared). Only the leader uses it. Its
// resource version makes sure that a replica that does not know that it was replaced writes nothing.
type Told struct {
	election *election

	mu sync.Mutex
	// object is the ConfigMap as this replica knows it; nil if it has to be read.
	object *corev1.ConfigMap
	// version is the last resource version that this replica has read or written. foreign counts the versions
	// that it has read and another replica has written, and loaded has the count when each exporter last
	// loaded its value. An exporter that has not loaded it since does not know what it would overwrite: the
	// former leader may have written once more after the next one had loaded.
	version string
	foreign int
	loaded  map[string]int
}

// Told returns what the replicas share about exports; nil if there is no election.
func (c *Cluster) Told() *Told {
	if c == nil || c.election.name == "" {
		return nil
	}
	return &Told{election: c.election, loaded: make(map[string]int)}
}

// Load returns what was saved for an exporter; nil if nothing was.
func (t *Told) Load(ctx context.Context, name string) ([]byte, error) {
	if !t.election.leads() {
		return nil, errNotLeading
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.read(ctx); err != nil {
		return nil, err
	}
	t.loaded[name] = t.foreign
	if value, found := t.object.Data[toldKey(name)]; found {
		return []byte(value), nil
	}
	return nil, nil
}

// Save replaces what was saved for an exporter.
func (t *Told) Save(ctx context.Context, name string, value []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.object == nil {
		if err := t.read(ctx); err != nil {
			return err
		}
	}
	for again := false; ; again = true {
		if !t.election.leads() || t.loaded[name] != t.foreign {
			return errNotLeading
		}
		next := t.object.DeepCopy()
		if next.Data == nil {
			next.Data = make(map[string]string)
		}
		next.Data[toldKey(name)] = string(value)
		next.Annotations = map[string]string{leaderNote: t.election.identity}
		made := new(corev1.ConfigMap)
		err := t.request(next).Do(ctx).Into(made)
		if err == nil {
			t.object, t.version = made, made.ResourceVersion
			return nil
		}
		t.object = nil
		if again || !apierrors.IsConflict(err) {
			return fmt.Errorf("write ConfigMap: %w", err)
		}
		// The answer to an earlier write may have been lost.
		if err := t.read(ctx); err != nil {
			return err
		}
	}
}

// read reads the ConfigMap. The caller holds mu.
func (t *Told) read(ctx context.Context) error {
	made := new(corev1.ConfigMap)
	err := t.client().Get().Namespace(t.election.namespace).Resource("configmaps").Name(t.name()).Do(ctx).Into(made)
	switch {
	case apierrors.IsNotFound(err):
		made = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: t.election.namespace, Name: t.name()}}
	case err != nil:
		return fmt.Errorf("read ConfigMap: %w", err)
	}
	if made.ResourceVersion != t.version && made.Annotations[leaderNote] != t.election.identity {
		t.foreign++
	}
	t.object, t.version = made, made.ResourceVersion
	return nil
}

// request returns the request that writes the ConfigMap.
func (t *Told) request(next *corev1.ConfigMap) *rest.Request {
	if next.ResourceVersion == "" {
		return t.client().Post().Namespace(next.Namespace).Resource("configmaps").Body(next)
	}
	return t.client().Put().Namespace(next.Namespace).Resource("configmaps").Name(next.Name).Body(next)
}

func (t *Told) client() *rest.RESTClient { return t.election.cluster.clients.core }

func (t *Told) name() string { return t.election.name + toldSuffix }

// toldKey returns the key of an exporter, whose name may contain a URL.
func toldKey(name string) string {
	kind, receiver, several := strings.Cut(name, " ")
	if !several {
		return kind
	}
	sum := sha256.Sum256([]byte(receiver))
	return kind + "." + hex.EncodeToString(sum[:8])
}
