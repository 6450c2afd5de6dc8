package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/ipwitness/ipwitness/ipam"
)

// clients has the REST clients for the API server. Their scheme has only the types in use.
type clients struct {
	server             string
	core, coordination *rest.RESTClient
	// authentication and authorization send reviews of callers, at the rate at which callers
	// arrive.
	authentication, authorization *rest.RESTClient
	// custom has a client for each group and version of custom resources.
	custom map[schema.GroupVersion]*rest.RESTClient
	// discovery asks which groups, versions and resources are served.
	discovery *rest.RESTClient
}

// configure returns the configuration of the cluster's clients; nil if there is no cluster.
func configure(cfg Config, log *slog.Logger) (*rest.Config, error) {
	switch cfg.Kubeconfig {
	case Off:
		return nil, nil
	case Auto, "":
		where, err := rest.InClusterConfig()
		switch {
		case errors.Is(err, rest.ErrNotInCluster):
			return nil, nil
		case errors.Is(err, fs.ErrNotExist):
			log.Info("the Kubernetes API is not used: this pod has no service account token; see --kubeconfig")
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("find the Kubernetes API of this pod: %w", err)
		}
		return where, nil
	}
	where, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", cfg.Kubeconfig, err)
	}
	return where, nil
}

// newClients returns the clients. They connect on first use.
func newClients(where *rest.Config, log *slog.Logger, version string) (clients, error) {
	logOfClientGo(log)
	where = rest.CopyConfig(where)
	where.UserAgent = "ipwitness/" + version
	where.WarningHandlerWithContext = warnings{log}
	// Protobuf is a third of the size of JSON, and much faster to decode.
	where.ContentType = runtime.ContentTypeProtobuf
	where.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	where.QPS, where.Burst = 50, 100

	where.NegotiatedSerializer = newCodecs().WithoutConversion()

	c := clients{server: where.Host}
	hc, err := rest.HTTPClientFor(where)
	if err != nil {
		return c, fmt.Errorf("use the Kubernetes API server %s: %w", where.Host, err)
	}
	make := func(path string, version schema.GroupVersion) (*rest.RESTClient, error) {
		of := rest.CopyConfig(where)
		of.APIPath, of.GroupVersion = path, &version
		client, err := rest.RESTClientForConfigAndClient(of, hc)
		if err != nil {
			return nil, fmt.Errorf("use the Kubernetes API server %s: %w", where.Host, err)
		}
		return client, nil
	}
	if c.core, err = make("/api", corev1.SchemeGroupVersion); err != nil {
		return c, err
	}
	if c.coordination, err = make("/apis", coordinationv1.SchemeGroupVersion); err != nil {
		return c, err
	}
	where.QPS = -1 // package access limits the rate
	if c.authentication, err = make("/apis", authenticationv1.SchemeGroupVersion); err != nil {
		return c, err
	}
	if c.authorization, err = make("/apis", authorizationv1.SchemeGroupVersion); err != nil {
		return c, err
	}
	where.QPS = 50
	// Custom resources are not available as protobuf.
	where.ContentType, where.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	where.NegotiatedSerializer = newCustomCodecs().WithoutConversion()
	c.custom = map[schema.GroupVersion]*rest.RESTClient{}
	for _, k := range customKinds() {
		gv := versionOf(k)
		if c.custom[gv] != nil {
			continue
		}
		if c.custom[gv], err = make("/apis", gv); err != nil {
			return c, err
		}
	}
	c.discovery, err = make("/apis", schema.GroupVersion{})
	return c, err
}

// newCodecs returns the codecs of the built-in types in use.
func newCodecs() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	core, coordination := corev1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion
	scheme.AddKnownTypes(core,
		&corev1.Pod{}, &corev1.PodList{}, &corev1.Node{}, &corev1.NodeList{},
		&corev1.Service{}, &corev1.ServiceList{}, &corev1.Event{}, &corev1.EventList{})
	scheme.AddKnownTypes(coordination, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	scheme.AddKnownTypes(authenticationv1.SchemeGroupVersion, &authenticationv1.TokenReview{})
	scheme.AddKnownTypes(authorizationv1.SchemeGroupVersion, &authorizationv1.SubjectAccessReview{})
	metav1.AddToGroupVersion(scheme, authenticationv1.SchemeGroupVersion)
	metav1.AddToGroupVersion(scheme, authorizationv1.SchemeGroupVersion)
	metav1.AddToGroupVersion(scheme, core)
	metav1.AddToGroupVersion(scheme, coordination)
	return serializer.NewCodecFactory(scheme)
}

// warnings logs the warnings that the API server adds to its responses.
type warnings struct{ log *slog.Logger }

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	if code == 299 && text != "" { // the only code that Kubernetes uses
		w.log.DebugContext(ctx, "warning from the Kubernetes API server", "warning", ipam.Plain(text))
	}
}

var clientGoLogs sync.Once

// logOfClientGo redirects client-go's log to log. This happens once, because client-go has one
// logger per process, which cannot be changed while it is in use.
func logOfClientGo(log *slog.Logger) {
	clientGoLogs.Do(func() { klog.SetSlogLogger(log.With("source", "client-go")) })
}
