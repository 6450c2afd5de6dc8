package forward

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	_ "k8s.io/client-go/plugin/pkg/client/auth/oidc" // as kubectl has it
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// labels are the labels of the Service and the pods.
	labels = "app.kubernetes.io/name=ipwitness,app.kubernetes.io/component=aggregator"
	// usual is the namespace to look in if the user may not list all namespaces.
	usual = "ipwitness"
	// audience is the token audience of the aggregator.
	audience = "ipwitness"
	// tokenLife is the requested lifetime of a token.
	tokenLife = time.Hour
)

// cluster is a client of the Kubernetes API with the user's permissions. It does not use the typed
// client set of client-go, whose scheme makes a program about 20 MB larger.
type cluster struct {
	config *rest.Config
	core   *rest.RESTClient
}

// newCluster reads the kubeconfig like kubectl: KUBECONFIG, ~/.kube/config, or the service account of
// the pod that this program runs in.
func newCluster(cfg Config) (*cluster, error) {
	where, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		kubeconfig(cfg.Kubeconfig),
		&clientcmd.ConfigOverrides{CurrentContext: cfg.Context},
	).ClientConfig()
	files := os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	switch {
	case clientcmd.IsEmptyConfig(err) && files != "":
		return nil, failed("%s=%s has no cluster: the file does not exist, or is empty", clientcmd.RecommendedConfigPathEnvVar, files)
	case clientcmd.IsEmptyConfig(err):
		return nil, failed("no kubeconfig found: -P needs KUBECONFIG or ~/.kube/config, like kubectl; without Kubernetes, use --server instead of -P")
	case err != nil:
		return nil, failed("read the kubeconfig: %w", err)
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.ServiceList{}, &corev1.PodList{}, &corev1.ConfigMap{})
	scheme.AddKnownTypes(authenticationv1.SchemeGroupVersion, &authenticationv1.TokenRequest{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	where.APIPath, where.GroupVersion = "/api", &corev1.SchemeGroupVersion
	where.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	where.UserAgent = cfg.UserAgent
	where.WarningHandlerWithContext = rest.NoWarnings{}
	core, err := rest.RESTClientFor(where)
	if err != nil {
		return nil, failed("cannot use the kubeconfig: %w", err)
	}
	return &cluster{where, core}, nil
}

// kubeconfig returns the files that kubectl would read, or one file.
func kubeconfig(file string) *clientcmd.ClientConfigLoadingRules {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	return rules
}

// Contexts returns the names of the contexts of a kubeconfig, in order; none if it cannot be read.
func Contexts(file string) []string {
	all, err := kubeconfig(file).Load()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(all.Contexts))
}

// refused returns an error that describes why the API server rejected a request.
func (c *cluster) refused(err error, verb, resource, namespace, todo string) error {
	var asked *url.Error
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case apierrors.IsForbidden(err):
		where := "in all namespaces"
		if namespace != "" {
			where = "in namespace " + namespace
		}
		return failed("cannot %s: you lack the permission to %s %s %s; the Role ipwitness-port-forward of the chart grants it (%w)", todo, verb, resource, where, err)
	case apierrors.IsUnauthorized(err):
		return failed("the Kubernetes API server %s does not accept your credentials: log in as for kubectl (%w)", c.config.Host, err)
	case errors.As(err, &asked):
		return failed("cannot reach the Kubernetes API server %s: %w", c.config.Host, asked.Err)
	default:
		return failed("cannot %s: %w", todo, err)
	}
}

// service is the Service of an aggregator.
type service struct {
	namespace, name string
	scheme          string // http or https
	// port is the target port as a number; portName is the target port as a name.
	port     int
	portName string
	selector string
}

// host returns the DNS name of the Service in its cluster, which is also in its certificate.
func (s service) host() string { return s.name + "." + s.namespace + ".svc" }

// service looks for the Service of the aggregator.
func (c *cluster) service(ctx context.Context, namespace string) (service, error) {
	var list corev1.ServiceList
	err := c.list(ctx, namespace, "services", labels, &list)
	if namespace == "" && apierrors.IsForbidden(err) {
		namespace = usual
		err = c.list(ctx, namespace, "services", labels, &list)
	}
	if err != nil {
		return service{}, c.refused(err, "list", "services", namespace, "look for the Service of ipwitness")
	}
	var found service
	var names []string
	for _, s := range list.Items {
		i := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == "http" || p.Name == "https" })
		if i < 0 || len(s.Spec.Selector) == 0 {
			continue
		}
		p, scheme := s.Spec.Ports[i], "http"
		if p.Name == "https" || p.AppProtocol != nil && strings.EqualFold(*p.AppProtocol, "https") {
			scheme = "https"
		}
		found = service{
			namespace: s.Namespace, name: s.Name, scheme: scheme,
			selector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: s.Spec.Selector}),
			port:     cmp.Or(p.TargetPort.IntValue(), int(p.Port)), portName: p.TargetPort.StrVal,
		}
		names = append(names, s.Namespace+"/"+s.Name)
	}
	switch len(names) {
	case 0:
	case 1:
		return found, nil
	default:
		return service{}, failed("there are %d aggregators, with the Services %s: select one with --aggregator-namespace", len(names), strings.Join(names, ", "))
	}
	where := "any namespace"
	if namespace != "" {
		where = "namespace " + namespace
	}
	return service{}, failed("no Service in %s of %s has the labels %s and a port http: is ipwitness installed there? Select another place with --context and --aggregator-namespace",
		where, c.config.Host, labels)
}

// pod is a pod of an aggregator, and its port.
type pod struct {
	namespace, name string
	port            int
}

// pod looks for a pod that is ready.
func (c *cluster) pod(ctx context.Context, s service) (pod, error) {
	var list corev1.PodList
	if err := c.list(ctx, s.namespace, "pods", s.selector, &list); err != nil {
		return pod{}, c.refused(err, "list", "pods", s.namespace, "look for a pod of Service "+s.namespace+"/"+s.name)
	}
	var not []string
	for _, p := range list.Items {
		if why := unready(p); why != "" {
			not = append(not, p.Name+" is "+why)
			continue
		}
		return pod{p.Namespace, p.Name, s.portOf(p)}, nil
	}
	if len(not) == 0 {
		return pod{}, failed("Service %s/%s has no pod (no pod in this namespace has the labels %s): is the StatefulSet scaled to 0?", s.namespace, s.name, s.selector)
	}
	return pod{}, failed("no pod of Service %s/%s is ready: %s; 'kubectl --namespace %[1]s describe pod' shows why", s.namespace, s.name, strings.Join(not, ", "))
}

// unready returns why a pod is not ready; it is empty for a ready pod.
func unready(p corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "terminating"
	}
	if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}) {
		return ""
	}
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason != "" {
			return w.Reason
		}
	}
	if p.Status.Phase == corev1.PodRunning {
		return "not ready"
	}
	return string(p.Status.Phase)
}

// portOf returns the service's port on a pod.
func (s service) portOf(p corev1.Pod) int {
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if s.portName != "" && port.Name == s.portName {
				return int(port.ContainerPort)
			}
		}
	}
	return s.port
}

// list lists objects of one namespace, or of all namespaces.
func (c *cluster) list(ctx context.Context, namespace, resource, selector string, into runtime.Object) error {
	return c.core.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).
		Param("labelSelector", selector).Do(ctx).Into(into)
}

// authority reads the CA of the aggregator's certificate from its ConfigMap.
func (c *cluster) authority(ctx context.Context, s service) (*x509.CertPool, error) {
	where := s.namespace + "/" + s.name + "-ca"
	var m corev1.ConfigMap
	err := c.core.Get().Namespace(s.namespace).Resource("configmaps").Name(s.name + "-ca").Do(ctx).Into(&m)
	pool := x509.NewCertPool()
	switch {
	case apierrors.IsNotFound(err):
		return nil, failed("there is no ConfigMap %s with the CA of the aggregator's certificate: set --tls-ca to the CA", where)
	case err != nil:
		return nil, c.refused(err, "get", "configmaps", s.namespace, "read ConfigMap "+where+" for the CA of the aggregator (or set it with --tls-ca)")
	case !pool.AppendCertsFromPEM([]byte(m.Data["ca.crt"])):
		return nil, failed("ConfigMap %s has no certificate in ca.crt: set --tls-ca to the CA of the aggregator's certificate", where)
	}
	return pool, nil
}

// token requests a token of the read-only service account for users.
func (c *cluster) token(ctx context.Context, s service) token {
	name := s.name + "-reader"
	ask := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences:         []string{audience},
		ExpirationSeconds: new(int64(tokenLife.Seconds())),
	}}
	asked := time.Now()
	var got authenticationv1.TokenRequest
	err := c.core.Post().Namespace(s.namespace).Resource("serviceaccounts").Name(name).SubResource("token").Body(ask).Do(ctx).Into(&got)
	if err == nil {
		// The API server may choose a shorter lifetime.
		return token{text: got.Status.Token, until: asked.Add(got.Status.ExpirationTimestamp.Sub(asked) * 4 / 5)}
	}
	todo := fmt.Sprintf("get a token of service account %s/%s (or set one with --token-file)", s.namespace, name)
	return token{denied: c.refused(err, "create", "serviceaccounts/token", s.namespace, todo)}
}
