package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
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
	// labels are those of the Service and the pods.
	labels = "app.kubernetes.io/name=ipwitness,app.kubernetes.io/component=aggregator"
	// usual is the namespace of who may not look into all.
	usual = "ipwitness"
	// audience is that of the aggregator.
	audience = "ipwitness"
	// tokenLife is how long a token is asked for.
	tokenLife = time.Hour
)

// cluster is the Kubernetes API, as the user may use it. The typed client set of
// client-go is not used: its scheme alone makes a program some 20 MB larger.
type cluster struct {
	config *rest.Config
	core   *rest.RESTClient
}

// newCluster reads the kubeconfig as kubectl does: KUBECONFIG, ~/.kube/config, or
// the service account of the pod that we run in.
func newCluster(cfg Config) (*cluster, error) {
	where, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(),
		&clientcmd.ConfigOverrides{CurrentContext: cfg.Context},
	).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, failed("there is no kubeconfig to find the cluster by: -P needs what kubectl needs, KUBECONFIG or ~/.kube/config; without Kubernetes leave out -P, and use --server")
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
		return nil, failed("use the kubeconfig: %w", err)
	}
	return &cluster{where, core}, nil
}

// refused makes an Error of what the API server answered.
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
		return failed("you may not %s: the right to %s %s %s is missing; the Role ipwitness-port-forward of the chart has it (%w)", todo, verb, resource, where, err)
	case apierrors.IsUnauthorized(err):
		return failed("the Kubernetes API server %s does not know you: log in as for kubectl (%w)", c.config.Host, err)
	case errors.As(err, &asked):
		return failed("cannot reach the Kubernetes API server %s: %w", c.config.Host, asked.Err)
	default:
		return failed("cannot %s: %w", todo, err)
	}
}

// service is that of an aggregator.
type service struct {
	namespace, name string
	tls             bool
	// port is its target port: a number, or a name for each pod to have.
	port     int
	portName string
	selector string
}

// host is the name by which it is known in its cluster, and to its certificate.
func (s service) host() string { return s.name + "." + s.namespace + ".svc" }

// service finds the Service of the aggregator.
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
	var found []service
	var names []string
	for _, i := range list.Items {
		if s, ok := parseService(i); ok {
			found = append(found, s)
			names = append(names, s.namespace+"/"+s.name)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return service{}, failed("there are %d aggregators, with the Services %s: name one with --namespace", len(found), strings.Join(names, ", "))
	}
	where := cmp.Or(namespace, "any namespace")
	if namespace != "" {
		where = "namespace " + namespace
	}
	return service{}, failed("no Service in %s of %s has the labels %s and a port http: is ipwitness installed there? --context and --namespace name another place",
		where, c.config.Host, labels)
}

// parseService reads the Service of an aggregator.
func parseService(s corev1.Service) (service, bool) {
	for _, p := range s.Spec.Ports {
		if p.Name != "http" && p.Name != "https" || len(s.Spec.Selector) == 0 {
			continue
		}
		selector := metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: s.Spec.Selector})
		return service{
			namespace: s.Namespace, name: s.Name, selector: selector,
			tls:  p.Name == "https" || p.AppProtocol != nil && strings.EqualFold(*p.AppProtocol, "https"),
			port: cmp.Or(p.TargetPort.IntValue(), int(p.Port)), portName: p.TargetPort.StrVal,
		}, true
	}
	return service{}, false
}

// pod is one of an aggregator, and its port.
type pod struct {
	namespace, name string
	port            int
}

// pod finds one that is ready.
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
		return pod{}, failed("Service %s/%s has no pod (none in this namespace has the labels %s): is the Deployment scaled to 0?", s.namespace, s.name, s.selector)
	}
	return pod{}, failed("no pod of Service %s/%s is ready: %s; 'kubectl --namespace %[1]s describe pod' says why", s.namespace, s.name, strings.Join(not, ", "))
}

// unready says why a pod takes no requests; nothing if it does.
func unready(p corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "ending"
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

// portOf gives the service's port on a pod.
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

// list lists objects of one namespace, or of all.
func (c *cluster) list(ctx context.Context, namespace, resource, selector string, into runtime.Object) error {
	return c.core.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).
		Param("labelSelector", selector).Do(ctx).Into(into)
}

// configMap reads one text of a ConfigMap.
func (c *cluster) configMap(ctx context.Context, namespace, name, key string) (string, error) {
	var m corev1.ConfigMap
	err := c.core.Get().Namespace(namespace).Resource("configmaps").Name(name).Do(ctx).Into(&m)
	switch {
	case apierrors.IsNotFound(err):
		return "", failed("there is no ConfigMap %s/%s with the CA of the aggregator's certificate: name the CA with --tls-ca", namespace, name)
	case err != nil:
		return "", c.refused(err, "get", "configmaps", namespace, "read ConfigMap "+namespace+"/"+name+" for the CA of the aggregator (or name it with --tls-ca)")
	}
	return m.Data[key], nil
}

// token asks for a token of the account for people, which only reads.
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
		// The API server may give it a shorter life.
		return token{text: got.Status.Token, until: asked.Add(got.Status.ExpirationTimestamp.Sub(asked) * 4 / 5)}
	}
	todo := fmt.Sprintf("get a token of service account %s/%s (or name one with --token-file)", s.namespace, name)
	return token{denied: c.refused(err, "create", "serviceaccounts/token", s.namespace, todo)}
}
