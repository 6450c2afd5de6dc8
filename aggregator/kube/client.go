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
		return c, fmt.Errorf("cannot use the Kubernetes API server %s: %w", where.Host, err)
	}
	var errs []error
	of := func(path string, version schema.GroupVersion) *rest.RESTClient {
		with := rest.CopyConfig(where)
		with.APIPath, with.GroupVersion = path, &version
		client, err := rest.RESTClientForConfigAndClient(with, hc)
		errs = append(errs, err)
		return client
	}
	c.core, c.coordination = of("/api", corev1.SchemeGroupVersion), of("/apis", coordinationv1.SchemeGroupVersion)
	where.QPS = -1 // package access limits the rate
	c.authentication, c.authorization = of("/apis", authenticationv1.SchemeGroupVersion), of("/apis", authorizationv1.SchemeGroupVersion)
	where.QPS = 50
	// Custom resources are not available as protobuf.
	where.ContentType, where.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	where.NegotiatedSerializer = newCustomCodecs().WithoutConversion()
	c.custom = map[schema.GroupVersion]*rest.RESTClient{}
	for _, k := range customKinds() {
		if gv := versionOf(k); c.custom[gv] == nil {
			c.custom[gv] = of("/apis", gv)
		}
	}
	c.discovery = of("/apis", schema.GroupVersion{})
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("cannot use the Kubernetes API server %s: %w", where.Host, err)
	}
	return c, nil
}

func newCodecs() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	for version, types := range map[schema.GroupVersion][]runtime.Object{
		corev1.SchemeGroupVersion: {
			&corev1.Pod{}, &corev1.PodList{}, &corev1.Node{}, &corev1.NodeList{},
			&corev1.Service{}, &corev1.ServiceList{}, &corev1.Event{}, &corev1.EventList{},
		},
		coordinationv1.SchemeGroupVersion:   {&coordinationv1.Lease{}, &coordinationv1.LeaseList{}},
		authenticationv1.SchemeGroupVersion: {&authenticationv1.TokenReview{}},
		authorizationv1.SchemeGroupVersion:  {&authorizationv1.SubjectAccessReview{}},
	} {
		scheme.AddKnownTypes(version, types...)
		metav1.AddToGroupVersion(scheme, version)
	}
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
