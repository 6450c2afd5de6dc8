package main

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// All paths are relative to the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// needHelm skips the test if there is no Helm. Under make test it fails it.
func needHelm(t *testing.T) {
	t.Helper()
	if _, err := helmProgram(); err != nil {
		if os.Getenv("IPWITNESS_ROOT_TESTS") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// operators are the flags that make Helm assume a cluster with the operators.
var operators = []string{
	"--api-versions", "cert-manager.io/v1/Certificate", "--api-versions", "monitoring.coreos.com/v1/ServiceMonitor",
	"--api-versions", "monitoring.coreos.com/v1/PodMonitor", "--api-versions", "monitoring.coreos.com/v1/PrometheusRule",
}

// object is an object that the chart generates.
type object struct {
	metav1.TypeMeta
	metav1.ObjectMeta `json:"metadata"`
	text              []byte // JSON
}

// into decodes an object into its type.
func (o object) into(t *testing.T, to any) {
	t.Helper()
	if err := json.Unmarshal(o.text, to); err != nil {
		t.Fatal(err)
	}
}

// template returns the objects of a release with the given values.
func template(t *testing.T, release string, set ...string) (all []object) {
	t.Helper()
	needHelm(t)
	args := append([]string{"template", release, chart, "--namespace", "net"}, operators...)
	for _, s := range set {
		args = append(args, "--set", s)
	}
	out, err := helm(args...)
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewDecoder(strings.NewReader(out)); ; {
		var any map[string]any
		if err := d.Decode(&any); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if any == nil {
			continue
		}
		o := object{}
		if o.text, err = json.Marshal(any); err != nil {
			t.Fatal(err)
		}
		o.into(t, &o)
		all = append(all, o)
	}
}

// the decodes the only object of a kind and name.
func the(t *testing.T, all []object, kind, name string, to any) {
	t.Helper()
	for _, o := range all {
		if o.Kind == kind && o.Name == name {
			o.into(t, to)
			return
		}
	}
	t.Fatalf("no %s %s", kind, name)
}

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	needHelm(t)
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := valueList(values)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{filepath.Join(chart, "README.md"): listBegins + list + listEnds}
	for _, m := range rendered {
		if want[filepath.Join(manifests, m.path)], err = m.render(); err != nil {
			t.Fatal(err)
		}
	}
	definition, err := os.ReadFile(filepath.Join(chart, "crds", definitions))
	if err != nil {
		t.Fatal(err)
	}
	want[filepath.Join(manifests, "base", definitions)] = string(definition)
	for path, text := range want {
		if got, err := os.ReadFile(path); err != nil || !strings.Contains(string(got), text) {
			t.Errorf("%s is not up to date (%v): run 'make generate'", path, err)
		}
	}
}

func TestChartIsLinted(t *testing.T) {
	needHelm(t)
	for _, set := range []string{
		"witness.cluster=a",
		// Combinations for which NOTES.txt has a text.
		"tls.mode=existing,tls.existing.caConfigMap=a,aggregator.ingress.enabled=true,aggregator.ingress.hosts={a.example.net},aggregator.service.type=NodePort",
		"tls.mode=off,auth.tokenReview=false,aggregator.persistence.enabled=false",
	} {
		if _, err := helm("lint", "--strict", chart, "--set", set); err != nil {
			t.Errorf("--set %s: %v", set, err)
		}
	}
}

// A value in the schema that is missing from values.yaml would have no row in README.md. helm lint
// finds the opposite case.
func TestSchemaHasNoOtherValues(t *testing.T) {
	read := func(name string) (m map[string]any) {
		text, err := os.ReadFile(filepath.Join(chart, name))
		if err == nil {
			err = yaml.Unmarshal(text, &m)
		}
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	var compare func(in string, schema, values map[string]any)
	compare = func(in string, schema, values map[string]any) {
		properties, _ := schema["properties"].(map[string]any)
		if properties != nil && schema["additionalProperties"] != false && in != "" {
			t.Errorf("%s takes any name", in)
		}
		for name, below := range properties {
			value, ok := values[name]
			if !ok && in+name != "global" && in+name != "enabled" { // these come from a parent chart
				t.Errorf("values.yaml has no %s", in+name)
			}
			if m, ok := value.(map[string]any); ok {
				compare(in+name+".", below.(map[string]any), m)
			}
		}
	}
	compare("", read("values.schema.json"), read("values.yaml"))
}

// Another chart may depend on this one. The values that Helm adds then, the condition and the
// globals, must be accepted.
func TestDependencyOfAnotherChart(t *testing.T) {
	needHelm(t)
	dir := t.TempDir()
	parent := `{apiVersion: v2, name: platform, version: 0.1.0, dependencies: [{name: ipwitness, version: "*", condition: ipwitness.enabled}]}`
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "Chart.yaml"), []byte(parent), 0o600),
		os.CopyFS(filepath.Join(dir, "charts/ipwitness"), os.DirFS(chart))); err != nil {
		t.Fatal(err)
	}
	for enabled, want := range map[string]bool{"true": true, "false": false} {
		out, err := helm("template", "release", dir, "--set", "ipwitness.enabled="+enabled+",ipwitness.agent.wire=off,global.registry=example.net")
		if got := strings.Contains(out, "name: release-ipwitness-agent"); err != nil || got != want {
			t.Errorf("ipwitness.enabled=%s: agents are installed: got %t (%v), want %t", enabled, got, err, want)
		}
	}
}

func TestWhatDoesNotWorkIsRefused(t *testing.T) {
	needHelm(t)
	for set, want := range map[string]string{
		// Refused by the schema.
		"tls.mode=ssl":                                  "'/tls/mode': value must be one of",
		"witness.settel=3s":                             "additional properties 'settel' not allowed",
		"agnet.wire=tcx":                                "additional properties 'agnet' not allowed",
		"witness.settle=3":                              "'/witness/settle': got number, want string",
		"witness.settle=soon":                           "'/witness/settle': 'soon' does not match",
		"witness.networks.pods={10.0.0.0}":              "'/witness/networks/pods/0'",
		"image.tag=3020260":                             "'/image/tag': got number, want string",
		"image.digest=abc":                              "'/image/digest'",
		"log.level=loud":                                "'/log/level'",
		"agent.wire=xdp":                                "'/agent/wire'",
		"agent.hostPaths={opt}":                         "'/agent/hostPaths/0'",
		"auth.tokenSeconds=60":                          "'/auth/tokenSeconds': minimum: got 60, want 600",
		"rbac.ipam={flannel}":                           "'/rbac/ipam/0'",
		"agent.podAnnotations.a=1":                      "'/agent/podAnnotations/a': got number, want string",
		"aggregator.persistence.accessModes={R}":        "'/aggregator/persistence/accessModes/0'",
		"aggregator.podDisruptionBudget.minAvailable=a": "'/aggregator/podDisruptionBudget/minAvailable'",
		"aggregator.service.ipFamilies={IPv5}":          "'/aggregator/service/ipFamilies/0'",
		"aggregator.terminationGracePeriodSeconds=2":    "'/aggregator/terminationGracePeriodSeconds': minimum: got 2, want 5",
		"aggregator.service.nodePorts.grpc=70000":       "'/aggregator/service/nodePorts/grpc'",
		"aggregator.ingress.tls[0].secret=web":          "additional properties 'secret' not allowed",
		"monitoring.podMonitor.interval=1.5m":           "'/monitoring/podMonitor/interval'",
		"fullnameOverride=a.b":                          "'/fullnameOverride'",
		"fullnameOverride=1e3":                          "the name 1e3 of the Service must begin with a lower-case letter",
		"nameOverride=UPPER":                            "'/nameOverride'",
		"tls.extraAddresses={banana}":                   "'/tls/extraAddresses/0'",
		"tls.extraNames={a_b}":                          "'/tls/extraNames/0'",
		"tls.existing.serverSecret=a_b":                 "'/tls/existing/serverSecret'",
		"networkPolicy.nodeCIDRs={10.1.0.0/8}":          "networkPolicy.nodeCIDRs: \"10.1.0.0/8\" has bits beyond its mask",
		"aggregator.persistence.size=1.2.3Gi":           "'/aggregator/persistence/size'",
		"agent.podLabels.a=b c":                         "'/agent/podLabels/a'",
		// Labels that selectors use.
		`commonLabels.app\.kubernetes\.io/name=a`:         "invalid propertyName 'app.kubernetes.io/name'",
		`agent.podLabels.app\.kubernetes\.io/component=a`: "invalid propertyName 'app.kubernetes.io/component'",
		// Refused by the checks in the templates.
		"tls.mode=off": "auth.tokenReview needs TLS",
		"aggregator.podDisruptionBudget.minAvailable=2":                                              "must be less than aggregator.replicas",
		"aggregator.podDisruptionBudget.minAvailable=100%":                                           "must be less than aggregator.replicas",
		"auth.tokenReview=false":                                                                     "tls.mode needs auth.tokenReview",
		"tls.mode=off,auth.tokenReview=false,auth.tokensSecret=t":                                    "auth.tokensSecret needs TLS",
		"tls.mode=off,auth.tokenReview=false,tls.mutual=true":                                        "tls.mutual cannot be combined",
		"tls.mode=existing,tls.mutual=true,auth.tokenReview=false":                                   "tls.mutual needs auth.tokenReview",
		"tls.mode=cert-manager":                                                                      "Install cert-manager first",
		"tls.helm.days=3650":                                                                         "tls.helm.caDays must be greater than tls.helm.days",
		"monitoring.serviceMonitor.enabled=true":                                                     "monitoring.serviceMonitor: this cluster does not have ServiceMonitor",
		"monitoring.podMonitor.enabled=true":                                                         "does not have PodMonitor",
		"monitoring.rules.enabled=true":                                                              "does not have PrometheusRule",
		"monitoring.podMonitor.enabled=true,agent.httpListen=127.0.0.1:9642":                         "with agent.httpListen=127.0.0.1:9642, only the node itself",
		"monitoring.podMonitor.enabled=true,agent.httpListen=[::1]:9642":                             "only the node itself",
		"rbac.create=false,aggregator.serviceAccount.create=false":                                   "aggregator.serviceAccount: it is neither created nor named",
		"aggregator.service.nodePorts.grpc=30640":                                                    "which type ClusterIP does not accept",
		"aggregator.service.loadBalancerSourceRanges={192.0.2.0/24}":                                 "which type ClusterIP does not accept",
		"aggregator.export.webhookUrl=https://hooks.example.net":                                     "aggregator.export.webhookUrl needs webhookSecret",
		"aggregator.export.natsCredsSecret=n":                                                        "aggregator.export.natsServers: the other settings",
		"aggregator.export.natsServers={nats://n:4222},aggregator.export.natsClientCertificate=true": "natsClientCertificate needs natsTLSSecret",
		"aggregator.export.natsServers={nats://user:secret@n:4222}":                                  "'/aggregator/export/natsServers/0'",
		"aggregator.export.otlpEndpoint=otel:4318":                                                   "'/aggregator/export/otlpEndpoint'",
		"aggregator.ingress.enabled=true":                                                            "aggregator.ingress.hosts: at least one host",
		"monitoring.rules.disabled={IpwitnessAgents}":                                                "there is no alert IpwitnessAgents:",
	} {
		out, err := helm("template", "ipwitness", chart, "--set", set)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: got %v (%d bytes), want %q", set, err, len(out), want)
		}
	}
}

// Agents have only the access that they need: they write nothing on the node, and use the
// Kubernetes API only to authenticate.
func TestAgentsHaveLeastPrivilege(t *testing.T) {
	for _, mode := range []string{"tls.mode=helm", "tls.mode=existing", "tls.mode=cert-manager", "tls.mode=cert-manager,tls.mutual=true", "agent.hostPaths={/opt/cni}"} {
		var d appsv1.DaemonSet
		all := template(t, "ipwitness", mode)
		the(t, all, "DaemonSet", "ipwitness-agent", &d)
		pod := d.Spec.Template.Spec
		c := pod.Containers[0].SecurityContext
		slices.Sort(c.Capabilities.Add)
		if want := []corev1.Capability{"BPF", "NET_ADMIN", "NET_BROADCAST", "PERFMON"}; !slices.Equal(c.Capabilities.Add, want) || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: got %v, want %v", mode, c.Capabilities, want)
		}
		if c.Privileged != nil || *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || c.SeccompProfile.Type != "RuntimeDefault" ||
			pod.HostPID || pod.HostIPC || !pod.HostNetwork || *pod.AutomountServiceAccountToken || len(pod.InitContainers) > 0 {
			t.Errorf("%s: got unneeded permissions: %v", mode, pod)
		}
		for _, m := range pod.Containers[0].VolumeMounts {
			i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
			if !m.ReadOnly {
				t.Errorf("%s: %s can be written to", mode, m.MountPath)
			}
			if h := pod.Volumes[i].HostPath; h != nil && (h.Path != m.MountPath || m.MountPropagation == nil || *m.MountPropagation != corev1.MountPropagationHostToContainer) {
				t.Errorf("%s: %s of the node is at %s, with propagation %v; want it at its own path, HostToContainer", mode, h.Path, m.MountPath, m.MountPropagation)
			}
		}
		// The keys of the aggregator and of the CA must not be on nodes.
		for _, v := range pod.Volumes {
			if v.Secret != nil && v.Secret.SecretName != "ipwitness-agent-tls" {
				t.Errorf("%s: every node has Secret %s", mode, v.Secret.SecretName)
			}
		}
		for _, o := range all {
			if strings.HasSuffix(o.Kind, "Binding") && bytes.Contains(o.text, []byte(`"ipwitness-agent"`)) {
				t.Errorf("%s: %s %s gives agents rights", mode, o.Kind, o.Name)
			}
		}
	}
	var d appsv1.DaemonSet
	the(t, template(t, "ipwitness", "agent.privileged=true"), "DaemonSet", "ipwitness-agent", &d)
	if c := d.Spec.Template.Spec.Containers[0].SecurityContext; c.Privileged == nil || !*c.Privileged {
		t.Error("agent.privileged=true makes no privileged agents")
	}
}

// The aggregated roles of Kubernetes grant only rights to resources of ipwitness: a right to a URL
// path would apply to every server, including the API server.
func TestRolesOfKubernetesGetNoPaths(t *testing.T) {
	parts := map[string]string{}
	for _, o := range template(t, "ipwitness", "rbac.aggregate=true") {
		for label := range o.Labels {
			to, ok := strings.CutPrefix(label, "rbac.authorization.k8s.io/aggregate-to-")
			if !ok {
				continue
			}
			var role rbacv1.ClusterRole
			o.into(t, &role)
			for _, r := range role.Rules {
				parts[to] += strings.Join(slices.Concat(r.Verbs, r.Resources, r.NonResourceURLs), " ")
				if !slices.Equal(r.APIGroups, []string{"ipwitness.io"}) {
					t.Errorf("%s gets %v", to, r)
				}
			}
		}
	}
	if want := map[string]string{"view": "get list watch owners conflicts findings pools nodes events", "edit": "create conflicts/acknowledge"}; !maps.Equal(parts, want) {
		t.Errorf("got %v, want %v", parts, want)
	}
}

// Agents run on all nodes except those on which their pods would wait forever. They tolerate all
// taints.
func TestAgentsAreOnMachines(t *testing.T) {
	var d appsv1.DaemonSet
	the(t, template(t, "ipwitness"), "DaemonSet", "ipwitness-agent", &d)
	pod := d.Spec.Template.Spec
	machine := map[string]string{corev1.LabelOSStable: "linux"}
	terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for name, label := range map[string][2]string{
		"": {}, "Windows": {corev1.LabelOSStable, "windows"}, "AKS": {"type", "virtual-kubelet"}, "Fargate": {"eks.amazonaws.com/compute-type", "fargate"}, "EC2": {"eks.amazonaws.com/compute-type", "ec2"},
	} {
		node := maps.Clone(machine)
		if label[0] != "" {
			node[label[0]] = label[1]
		}
		got := len(pod.Tolerations) == 1 && pod.Tolerations[0] == corev1.Toleration{Operator: corev1.TolerationOpExists}
		for k, v := range pod.NodeSelector {
			got = got && node[k] == v
		}
		for _, e := range terms[0].MatchExpressions {
			got = got && e.Operator == corev1.NodeSelectorOpNotIn && !slices.Contains(e.Values, node[e.Key])
		}
		if want := name == "" || name == "EC2"; got != want || len(terms) != 1 {
			t.Errorf("a node %q with %v: has an agent: got %t, want %t", name, node, got, want)
		}
	}
}

// In a cluster, the aggregator may change only Events: token and access reviews change nothing. In its
// own namespace, it may also change what its replicas share.
func TestWhatTheAggregatorMayWrite(t *testing.T) {
	all := template(t, "ipwitness")
	writes := func(rules []rbacv1.PolicyRule) (writes []string) {
		for _, rule := range rules {
			for _, resource := range rule.Resources {
				if resource == "*" || strings.HasPrefix(resource, "secrets") || slices.Contains(rule.Verbs, "*") {
					t.Errorf("got the right %v", rule)
				}
				verbs := slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return v == "get" || v == "list" || v == "watch" })
				if len(verbs) > 0 {
					writes = append(writes, strings.Join(slices.Concat(verbs, []string{resource}, rule.ResourceNames), " "))
				}
			}
		}
		return writes
	}
	var inCluster rbacv1.ClusterRole
	var ofKubeVIP, ofReplicas rbacv1.Role
	the(t, all, "ClusterRole", "ipwitness-aggregator", &inCluster)
	the(t, all, "Role", "ipwitness-aggregator", &ofKubeVIP)
	the(t, all, "Role", "ipwitness-replicas", &ofReplicas)
	if got, want := writes(inCluster.Rules), []string{"create patch events", "create tokenreviews", "create subjectaccessreviews"}; !slices.Equal(got, want) {
		t.Errorf("in the cluster: may write %q, want %q", got, want)
	}
	if got := writes(ofKubeVIP.Rules); len(got) > 0 {
		t.Errorf("in %s: may write %q, want nothing", ofKubeVIP.Namespace, got)
	}
	if got, want := writes(ofReplicas.Rules), []string{
		"create leases", "update leases ipwitness", "create patch delete addressconflictacknowledgements",
	}; !slices.Equal(got, want) || ofReplicas.Namespace != "net" {
		t.Errorf("in %s: may write %q, want %q", ofReplicas.Namespace, got, want)
	}
	var roles []string
	for _, o := range all {
		var binding rbacv1.RoleBinding // a ClusterRoleBinding has the same fields
		if o.Kind != "RoleBinding" && o.Kind != "ClusterRoleBinding" {
			continue
		}
		if o.into(t, &binding); slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return s.Name == "ipwitness-aggregator" }) {
			roles = append(roles, binding.RoleRef.Kind+" "+binding.Namespace+"/"+binding.RoleRef.Name)
		}
	}
	slices.Sort(roles)
	if want := []string{"ClusterRole /ipwitness-aggregator", "Role kube-system/ipwitness-aggregator", "Role net/ipwitness-replicas"}; !slices.Equal(roles, want) {
		t.Errorf("the aggregator has the roles %q, want %q", roles, want)
	}
}

// Agents reach all replicas, also those that are not ready, and users only those that are ready.
// Everything that an agent or a user connects to is in the certificate.
func TestReplicas(t *testing.T) {
	type budget struct {
		Spec struct{ MinAvailable any }
	}
	for values, want := range map[string]int32{"": 2, "aggregator.replicas=1": 1, "aggregator.replicas=3,aggregator.persistence.enabled=false": 3} {
		all := template(t, "ipwitness", values)
		var s appsv1.StatefulSet
		var users, agents corev1.Service
		the(t, all, "StatefulSet", "ipwitness-aggregator", &s)
		the(t, all, "Service", "ipwitness", &users)
		the(t, all, "Service", "ipwitness-replicas", &agents)
		if *s.Spec.Replicas != want || s.Spec.ServiceName != agents.Name {
			t.Errorf("--set %s: got %d replicas of Service %s, want %d", values, *s.Spec.Replicas, s.Spec.ServiceName, want)
		}
		if agents.Spec.ClusterIP != corev1.ClusterIPNone || !agents.Spec.PublishNotReadyAddresses || !maps.Equal(agents.Spec.Selector, users.Spec.Selector) {
			t.Errorf("--set %s: the agents' Service is %+v", values, agents.Spec)
		}
		if users.Spec.ClusterIP != "" || users.Spec.PublishNotReadyAddresses {
			t.Errorf("--set %s: the users' Service is %+v", values, users.Spec)
		}
		if agents.Labels["app.kubernetes.io/component"] == users.Labels["app.kubernetes.io/component"] {
			t.Errorf("--set %s: a ServiceMonitor selects both Services", values)
		}
		terms := s.Spec.Template.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		if len(terms) != 1 || terms[0].PodAffinityTerm.TopologyKey != "kubernetes.io/hostname" || !maps.Equal(terms[0].PodAffinityTerm.LabelSelector.MatchLabels, s.Spec.Selector.MatchLabels) {
			t.Errorf("--set %s: got the anti-affinity %+v", values, terms)
		}
		if got := slices.ContainsFunc(all, func(o object) bool { return o.Kind == "PodDisruptionBudget" }); got != (want > 1) {
			t.Errorf("--set %s: there is a PodDisruptionBudget: got %t", values, got)
		} else if got {
			var b budget
			if the(t, all, "PodDisruptionBudget", "ipwitness-aggregator", &b); b.Spec.MinAvailable != 1. {
				t.Errorf("--set %s: got %+v", values, b)
			}
		}
		for name, wants := range map[string][]string{
			"ipwitness-agent":      {`"ipwitness-replicas.net.svc:9640"`},
			"ipwitness-aggregator": {`lease: "net/ipwitness"`, "- net/ipwitness-agent"},
		} {
			var c corev1.ConfigMap
			the(t, all, "ConfigMap", name, &c)
			for _, w := range wants {
				if text := c.Data["config.yaml"]; !strings.Contains(text, w) {
					t.Errorf("--set %s: ConfigMap %s lacks %s:\n%s", values, name, w, text)
				}
			}
		}
	}
	other := "aggregator.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1"
	var s appsv1.StatefulSet
	if the(t, template(t, "ipwitness", other), "StatefulSet", "ipwitness-aggregator", &s); s.Spec.Template.Spec.Affinity.PodAntiAffinity != nil {
		t.Errorf("--set %s: got %+v", other, s.Spec.Template.Spec.Affinity)
	}
}

// Each replica has a volume, which is deleted with the release unless it is to be kept.
func TestVolumes(t *testing.T) {
	for values, want := range map[string]appsv1.PersistentVolumeClaimRetentionPolicyType{
		"": "Delete", "aggregator.persistence.keep=true": "Retain", "aggregator.persistence.enabled=false": "",
	} {
		var s appsv1.StatefulSet
		the(t, template(t, "ipwitness", values), "StatefulSet", "ipwitness-aggregator", &s)
		var got appsv1.PersistentVolumeClaimRetentionPolicyType
		if p := s.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
			if got = p.WhenDeleted; p.WhenScaled != "Retain" {
				t.Errorf("--set %s: got %s, want the volume of a replica that is scaled down to be kept", values, p.WhenScaled)
			}
		}
		if claims := s.Spec.VolumeClaimTemplates; got != want || (len(claims) == 1) != (want != "") {
			t.Errorf("--set %s: got %q and %d claims, want %q", values, got, len(claims), want)
		}
		mounts := s.Spec.Template.Spec.Containers[0].VolumeMounts
		inPod := slices.ContainsFunc(s.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "data" && v.EmptyDir != nil })
		if !slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == "data" }) || inPod != (want == "") {
			t.Errorf("--set %s: the data is in the pod: got %t", values, inPod)
		}
	}
}

// The certificates of all sources have the same names, for agents, users and each pod.
func TestNamesInCertificates(t *testing.T) {
	want := []string{"ipwitness.net.svc", "ipwitness-replicas.net.svc", "ipwitness-aggregator-0.ipwitness-replicas.net.svc", "ipwitness-aggregator-11.ipwitness-replicas.net.svc.cluster.local", "localhost"}
	verify := func(source string, names []string) {
		t.Helper()
		c := x509.Certificate{DNSNames: names}
		for _, name := range want {
			if err := c.VerifyHostname(name); err != nil {
				t.Errorf("%s: %v", source, err)
			}
		}
		if c.VerifyHostname("ipwitness-replicas.other.svc") == nil {
			t.Errorf("%s: it is good for any name", source)
		}
	}
	var secret corev1.Secret
	the(t, template(t, "ipwitness"), "Secret", "ipwitness-tls", &secret)
	block, _ := pem.Decode(secret.Data["tls.crt"])
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	verify("helm", cert.DNSNames)
	var ofCertManager struct{ Spec struct{ DNSNames []string } }
	the(t, template(t, "ipwitness", "tls.mode=cert-manager"), "Certificate", "ipwitness", &ofCertManager)
	verify("cert-manager", ofCertManager.Spec.DNSNames)
	script, err := os.ReadFile(filepath.Join(manifests, "certificates.sh"))
	if err != nil {
		t.Fatal(err)
	}
	var ofScript []string
	for _, m := range regexp.MustCompile(`DNS:([^,"]+)`).FindAllStringSubmatch(string(script), -1) {
		ofScript = append(ofScript, strings.NewReplacer("$namespace", "net", "$name", "ipwitness").Replace(m[1]))
	}
	verify("certificates.sh", ofScript)
	slices.Sort(ofScript)
	if slices.Sort(cert.DNSNames); !slices.Equal(slices.DeleteFunc(ofScript, func(n string) bool { return n == "$n" }), cert.DNSNames) {
		t.Errorf("certificates.sh has %q, and the chart %q", ofScript, cert.DNSNames)
	}
}

func TestAggregatorIsRestricted(t *testing.T) {
	var d appsv1.StatefulSet
	the(t, template(t, "ipwitness"), "StatefulSet", "ipwitness-aggregator", &d)
	pod := d.Spec.Template.Spec
	c := pod.Containers[0].SecurityContext
	if pod.HostNetwork || !*pod.SecurityContext.RunAsNonRoot || *pod.SecurityContext.RunAsUser != 65532 || pod.SecurityContext.SeccompProfile.Type != "RuntimeDefault" ||
		*c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || len(c.Capabilities.Add) > 0 || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("got %v, %v", pod, c)
	}
}

// If the cluster assigns user and group IDs, the chart sets none, and leaves everything else as it
// is.
func TestAggregatorWithIDsOfTheCluster(t *testing.T) {
	var d appsv1.StatefulSet
	the(t, template(t, "ipwitness", "aggregator.podSecurityContext.runAsUser=null,aggregator.podSecurityContext.runAsGroup=null,aggregator.podSecurityContext.fsGroup=null"),
		"StatefulSet", "ipwitness-aggregator", &d)
	c := d.Spec.Template.Spec.SecurityContext
	if c.RunAsUser != nil || c.RunAsGroup != nil || c.FSGroup != nil || !*c.RunAsNonRoot || c.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("got %v", c)
	}
}

// From outside the cluster, the API port is reachable by the Ingress, and both ports by the
// Service.
func TestFromOutside(t *testing.T) {
	all := template(t, "ipwitness", "aggregator.service.type=LoadBalancer,aggregator.service.ipFamilies={IPv6,IPv4},aggregator.service.nodePorts.grpc=30640,"+
		"aggregator.service.externalTrafficPolicy=Local,aggregator.service.loadBalancerClass=lan,"+
		"aggregator.ingress.enabled=true,aggregator.ingress.className=web,aggregator.ingress.hosts={a.example.net,b.example.net},aggregator.ingress.annotations.a=b,"+
		"aggregator.ingress.tls[0].hosts={a.example.net},aggregator.ingress.tls[0].secretName=cert,commonAnnotations.by=us")
	var s corev1.Service
	the(t, all, "Service", "ipwitness", &s)
	if got := s.Spec; !slices.Equal(got.IPFamilies, []corev1.IPFamily{"IPv6", "IPv4"}) || got.ExternalTrafficPolicy != "Local" || *got.LoadBalancerClass != "lan" ||
		got.Ports[0].NodePort != 30640 || got.Ports[1].NodePort != 0 {
		t.Errorf("got %v", got)
	}
	var i networkingv1.Ingress
	the(t, all, "Ingress", "ipwitness", &i)
	if *i.Spec.IngressClassName != "web" || len(i.Spec.Rules) != 2 || !maps.Equal(i.Annotations, map[string]string{"a": "b", "by": "us"}) ||
		len(i.Spec.TLS) != 1 || i.Spec.TLS[0].SecretName != "cert" || !slices.Equal(i.Spec.TLS[0].Hosts, []string{"a.example.net"}) {
		t.Errorf("got %v", i)
	}
	for n, r := range i.Spec.Rules {
		path := r.HTTP.Paths[0]
		if r.Host != []string{"a.example.net", "b.example.net"}[n] || path.Path != "/" || *path.PathType != networkingv1.PathTypePrefix ||
			path.Backend.Service.Name != s.Name || path.Backend.Service.Port.Name != s.Spec.Ports[1].Name || s.Spec.Ports[1].Name != "http" {
			t.Errorf("got %v, want all requests at the Service's port http", r)
		}
	}
}

// Templates in extra objects are evaluated like those of the chart.
func TestExtraObjects(t *testing.T) {
	needHelm(t)
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(`extraObjects:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: "{{ .Release.Name }}-object"}}
  - |
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: {{ include "ipwitness.fullname" . }}-text}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := helm("template", "release", chart, "--values", values, "--show-only", "templates/extra.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name: 'release-object'\n", "{name: release-ipwitness-text}\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("got\n%s\nwant %q in it", out, want)
		}
	}
}

// Probes check only what a restart can cure. For agents this does not include the connection to the
// aggregator.
func TestProbes(t *testing.T) {
	for listen, want := range map[string]string{":9642": ":9642", "127.0.0.1:9": "127.0.0.1:9", "[::1]:9": "::1:9"} {
		var d appsv1.DaemonSet
		the(t, template(t, "ipwitness", "agent.httpListen="+listen), "DaemonSet", "ipwitness-agent", &d)
		c := d.Spec.Template.Spec.Containers[0]
		for path, p := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
			if got := p.HTTPGet; got.Path != path || got.Host+":"+got.Port.String() != want {
				t.Errorf("agent.httpListen=%s: got %v, want %s of %s", listen, got, path, want)
			}
		}
	}
	for values, want := range map[string]corev1.URIScheme{"tls.mode=helm": "HTTPS", "tls.mode=off,auth.tokenReview=false": ""} {
		var d appsv1.StatefulSet
		the(t, template(t, "ipwitness", values), "StatefulSet", "ipwitness-aggregator", &d)
		c := d.Spec.Template.Spec.Containers[0]
		port := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == "metrics" && p.ContainerPort == 9643 })
		for path, p := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
			// Probes do not use the REST listener, which clients may keep busy.
			if got := p.HTTPGet; got.Scheme != want || got.Path != path || got.Port.String() != "metrics" || port < 0 {
				t.Errorf("%s: got %v, want %s of port metrics by %q", values, got, path, want)
			}
		}
		var m corev1.ConfigMap
		the(t, template(t, "ipwitness", values), "ConfigMap", "ipwitness-aggregator", &m)
		var settings map[string]any
		if err := yaml.Unmarshal([]byte(m.Data["config.yaml"]), &settings); err != nil {
			t.Fatal(err)
		}
		if settings["metrics-listen"] != ":9643" {
			t.Errorf("%s: got metrics-listen %v, want :9643", values, settings["metrics-listen"])
		}
		if got, want := settings["require-auth"] == true, want == "HTTPS"; got != want {
			t.Errorf("%s: got require-auth %v, want %v", values, got, want)
		}
	}
}

// long is a release name of the greatest length.
const long = "a-release-with-a-name-that-is-as-long-as-can-be-53-ch"

// Two releases in a cluster share no object, and every object can be found by its labels.
func TestNamesAndLabels(t *testing.T) {
	seen := map[string]string{}
	for _, release := range []string{"ipwitness", "other", long} {
		all := template(t, release, "tls.mode=cert-manager,aggregator.persistence.enabled=true,monitoring.dashboards.enabled=true,"+
			"monitoring.rules.enabled=true,monitoring.serviceMonitor.enabled=true,monitoring.podMonitor.enabled=true,rbac.aggregate=true")
		for _, o := range all {
			id := o.Kind + " " + o.Name
			if by := seen[id]; by != "" && by != release {
				t.Errorf("releases %s and %s share %s", by, release, id)
			}
			seen[id] = release
			longest := 63
			if o.Kind == "StatefulSet" {
				longest = 52 // its pods have the name and a hash in a label
			}
			if len(o.Name) > longest {
				t.Errorf("%s %s has %d characters, but the limit is %d", o.Kind, o.Name, len(o.Name), longest)
			}
			if o.Labels["app.kubernetes.io/name"] != "ipwitness" || o.Labels["app.kubernetes.io/instance"] != release || o.Labels["helm.sh/chart"] == "" {
				t.Errorf("%s has labels %v", id, o.Labels)
			}
			if cluster := strings.HasPrefix(o.Kind, "Cluster"); cluster != (o.Namespace == "") {
				t.Errorf("%s is in namespace %q", id, o.Namespace)
			}
		}
	}
	all := template(t, "ipwitness")
	var agent appsv1.DaemonSet
	var aggregator appsv1.StatefulSet
	var service corev1.Service
	the(t, all, "DaemonSet", "ipwitness-agent", &agent)
	the(t, all, "StatefulSet", "ipwitness-aggregator", &aggregator)
	the(t, all, "Service", "ipwitness", &service)
	selects := func(what string, selector, labels map[string]string, want bool) {
		got := true
		for k, v := range selector {
			got = got && labels[k] == v
		}
		if got != want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	pod := aggregator.Spec.Template.Labels
	selects("the Service selects the aggregator", service.Spec.Selector, pod, true)
	selects("the Service selects agents", service.Spec.Selector, agent.Spec.Template.Labels, false)
	selects("the StatefulSet selects its pods", aggregator.Spec.Selector.MatchLabels, pod, true)
	selects("the DaemonSet selects its pods", agent.Spec.Selector.MatchLabels, agent.Spec.Template.Labels, true)
	for _, l := range []map[string]string{pod, agent.Spec.Template.Labels} {
		if l["helm.sh/chart"] != "" || l["app.kubernetes.io/version"] != "" {
			t.Errorf("pods have labels %v: they are replaced when the chart alone changes", l)
		}
	}
}

// Names that look like numbers in YAML remain strings, because the API server would refuse numbers.
func TestNamesLikeNumbers(t *testing.T) {
	for _, release := range []string{"1234567", "1e3"} {
		for _, set := range []string{"fullnameOverride=e1", "fullnameOverride=e3,tls.mode=cert-manager,monitoring.rules.enabled=true"} {
			for _, o := range template(t, release, set) {
				if o.Labels["app.kubernetes.io/instance"] != release {
					t.Errorf("%s %s of release %s has labels %v", o.Kind, o.Name, release, o.Labels)
				}
			}
		}
	}
	out, err := helm("template", "ipwitness", chart, "--namespace", "1234567")
	if err != nil || strings.Contains(out, "namespace: 1234567") {
		t.Errorf("a namespace is a number (%v)", err)
	}
}

// The labels of a pod have precedence over the common labels.
func TestLabelsOfPods(t *testing.T) {
	for component, kind := range map[string]string{"agent": "DaemonSet", "aggregator": "StatefulSet"} {
		all := template(t, "ipwitness", "commonLabels.team=net,commonLabels.cost=1a,"+component+".podLabels.team=own")
		var o struct {
			Spec struct{ Template corev1.PodTemplateSpec }
		}
		the(t, all, kind, "ipwitness-"+component, &o)
		if l := o.Spec.Template.Labels; l["team"] != "own" || l["cost"] != "1a" {
			t.Errorf("%s: got labels %v", component, l)
		}
	}
}

// The commonName of a certificate has at most 64 characters (RFC 5280, ub-common-name).
// cert-manager refuses longer ones.
func TestCommonNames(t *testing.T) {
	for _, o := range template(t, long, "tls.mode=cert-manager") {
		if o.Kind != "Certificate" {
			continue
		}
		var c struct{ Spec struct{ CommonName string } }
		o.into(t, &c)
		if n := len(c.Spec.CommonName); n == 0 || n > 64 {
			t.Errorf("%s: commonName %q has %d characters", o.Name, c.Spec.CommonName, n)
		}
	}
}

// Pods are replaced when their own settings change, and not when other settings change.
func TestChangedSettingsReplacePods(t *testing.T) {
	sums := func(values string) (agent, aggregator string) {
		var a appsv1.DaemonSet
		var d appsv1.StatefulSet
		all := template(t, "ipwitness", values)
		the(t, all, "DaemonSet", "ipwitness-agent", &a)
		the(t, all, "StatefulSet", "ipwitness-aggregator", &d)
		return a.Spec.Template.Annotations["checksum/config"], d.Spec.Template.Annotations["checksum/config"]
	}
	agent, aggregator := sums("log.level=info")
	for values, want := range map[string][2]bool{
		"witness.settle=2s": {false, true}, "agent.wire=off": {true, false}, "log.level=debug": {true, true}, "image.tag=next": {false, false},
	} {
		a, d := sums(values)
		if got := [2]bool{a != agent, d != aggregator}; got != want {
			t.Errorf("%s replaces agents, the aggregator: got %v, want %v", values, got, want)
		}
	}
}

// Every setting that the chart writes is a flag of the program with a valid value.
func TestSettingsAreFlags(t *testing.T) {
	needHelm(t)
	dir := t.TempDir()
	binary, err := netlab.Build(dir)
	if err != nil {
		t.Fatal(err)
	}
	help := map[string]string{}
	lines := map[string][]string{"agent": {netlab.AgentOf(binary)}, "aggregator": {binary, "aggregator"}}
	for command, line := range lines {
		out, err := exec.Command(line[0], append(slices.Clip(line[1:]), "--help")...).Output()
		if err != nil {
			t.Fatal(err)
		}
		help[command] = string(out)
	}
	for _, values := range []string{
		"tls.mode=off,auth.tokenReview=false",
		"tls.mode=cert-manager,tls.mutual=true,auth.tokensSecret=t,witness.networks.pods={10.244.0.0/16,fd00::/48},witness.shared.10\\.9\\.0\\.0/24=anycast," +
			"agent.interfaces={eth*},agent.excludeInterfaces={lo},agent.aggregators={a:1,b:2}",
		"aggregator.export.otlpEndpoint=http://otel:4318,aggregator.export.alertmanagers={http://am-0:9093,http://am-1:9093},aggregator.export.alertmanagerTokenSecret=t," +
			"aggregator.export.webhookUrl=https://hooks.example.net/a,aggregator.export.webhookSecret=w",
		"aggregator.export.natsServers={nats://n-0:4222,nats://n-1:4222},aggregator.export.natsTLSSecret=t,aggregator.export.natsClientCertificate=true,aggregator.export.natsCredsSecret=n",
	} {
		for command, line := range lines {
			text := help[command]
			var m corev1.ConfigMap
			the(t, template(t, "ipwitness", values), "ConfigMap", "ipwitness-"+command, &m)
			var settings map[string]any
			if err := yaml.Unmarshal([]byte(m.Data["config.yaml"]), &settings); err != nil {
				t.Fatal(err)
			}
			for name := range settings {
				if !regexp.MustCompile(`(?m)^ +--` + name + `\b`).MatchString(text) {
					t.Errorf("%s has no flag --%s (%s)", command, name, values)
				}
			}
			// The program accepts the file, and fails only because of the invalid flag.
			file := filepath.Join(dir, "config.yaml")
			if err := os.WriteFile(file, []byte(m.Data["config.yaml"]), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(line[0], append(slices.Clip(line[1:]), "--config", file, "--http-listen", "nowhere")...).CombinedOutput()
			if err == nil || strings.Contains(string(out), "config.yaml") || !strings.Contains(string(out), "nowhere") {
				t.Errorf("%s (%s): got %s, want nothing wrong but --http-listen", command, values, out)
			}
		}
	}
}

// flagValues has, for each flag that values of the chart set, the value, and values that the program accepts
// and refuses. The JSON of a value is that of helm's --set-json.
var flagValues = map[string]struct {
	command, value string
	// entry returns what the chart writes for a value; nil for the value itself.
	entry            func(value string) any
	accepts, refuses []string
}{
	"cluster": {"aggregator", "witness.cluster", nil, []string{"prod", "eu.west_1"}, []string{"", " ", "a/b", "a b", strings.Repeat("a", 254)}},
	"network": {
		"aggregator", "witness.networks", network,
		[]string{`{"pods":["10.244.0.0/16","fd00:244::/48"]}`, `{"all":["0.0.0.0/0","::/0"]}`, `{"one":["10.0.0.1/32","fd00::1/128","::1/128"]}`, `{"odd":["10.0.128.0/17","fd00:0:0:8000::/49","1:2:3:4:5:6:7:8/128"]}`},
		[]string{`{"x":["10.0.0.0/99"]}`, `{"x":["10.0.0.1/8"]}`, `{"x":["10.0.0.0/8","10.0.128.0/16"]}`, `{"x":["fd00:9::1/64"]}`, `{"x":["fd00:0:0:8000::/48"]}`, `{"x":["fd00::/129"]}`, `{"x":["1::2::3/64"]}`, `{"x":["10.0.0/8"]}`, `{"x":["256.0.0.0/8"]}`, `{"x":["banana/8"]}`, `{"a b":["10.0.0.0/8"]}`, `{"a/b":["10.0.0.0/8"]}`, `{"x":[]}`},
	},
	"shared":         {"aggregator", "witness.shared", reasons, []string{`{"10.9.0.0/24":"any cast"}`, `{"fd00:9::/64":"=1"}`}, []string{`{"10.9.0.1/24":"anycast"}`, `{"10.9.0.0/33":"anycast"}`, `{"10.9.0.0/24":" "}`, `{"10.9.0.0/24":""}`, `{"a":"anycast"}`}},
	"router":         {"aggregator", "witness.routers", reasons, []string{`{"kube-system/vpn-*":"gateway"}`, `{"02:00:00:00:00:01":"gateway"}`, `{"a/[b-d]?":"gateway"}`}, []string{`{" ":"gateway"}`, `{"a/[":"gateway"}`, `{"a/[]":"gateway"}`, `{"a/b":" "}`, `{"a/b":""}`}},
	"settle":         {"aggregator", "witness.settle", nil, durations, notDurations},
	"stale-after":    {"aggregator", "witness.staleAfter", nil, durations, notDurations},
	"node-timeout":   {"aggregator", "witness.nodeTimeout", nil, durations, notDurations},
	"handover-grace": {"aggregator", "witness.handoverGrace", nil, durations, notDurations},
	"leaked-after":   {"aggregator", "witness.leakedAfter", nil, durations, notDurations},
	"reused-within":  {"aggregator", "witness.reusedWithin", nil, append([]string{"off"}, durations...), notDurations},
	"retention":      {"aggregator", "aggregator.retention", nil, []string{"30d", "12h", "90m"}, []string{"0d", "99999d", "d", "1w"}},
	"journal-size":   {"aggregator", "aggregator.journalSize", nil, []string{"16MiB", "16384KiB", "10GiB", "524287GiB"}, []string{"15MiB", "16383KiB", "0GiB", "524288GiB", "10GB", "10"}},
	"otlp-endpoint":  {"aggregator", "aggregator.export.otlpEndpoint", nil, urls, notURLs},
	"alertmanager":   {"aggregator", "aggregator.export.alertmanagers", list, quoted(urls), quoted(notURLs)},
	"webhook":        {"aggregator", "aggregator.export.webhookUrl", nil, urls, notURLs},
	"nats":           {"aggregator", "aggregator.export.natsServers", list, quoted([]string{"nats://n:4222", "tls://[fd00::1]:4222", "wss://n.example.net"}), quoted([]string{"nats://", "nats://u:p@n:4222", "http://n:4222", "nats://n:x", "n:4222"})},
	"anonymous":      {"aggregator", "auth.anonymous", nil, []string{"none", "read"}, []string{"write"}},
	"log-level":      {"aggregator", "log.level", nil, []string{"debug", "error"}, []string{"loud"}},
	"log-format":     {"aggregator", "log.format", nil, []string{"json", "text"}, []string{"xml"}},

	"aggregator":         {"agent", "agent.aggregators", list, quoted([]string{"a.example.net:9640", "192.0.2.1:1", "[2001:db8::1]:65535"}), quoted([]string{"a", ":9640", "a:0", "a:65536", "a:x", "http://a:9640", "2001:db8::1:9640"})},
	"wire":               {"agent", "agent.wire", nil, []string{"auto", "off"}, []string{"xdp"}},
	"cri-socket":         {"agent", "agent.criSocket", nil, []string{"auto", "off", "/run/cri.sock"}, nil},
	"interfaces":         {"agent", "agent.interfaces", list, quoted(globs), quoted(notGlobs)},
	"exclude-interfaces": {"agent", "agent.excludeInterfaces", list, quoted(globs), quoted(notGlobs)},
	"http-listen":        {"agent", "agent.httpListen", nil, []string{":9642", "127.0.0.1:9642", "[::1]:1", "localhost:65535"}, []string{":99999", ":65536", "9642", "a:b:9642", ":", ":http"}},
}

var (
	durations    = []string{"1s", "500ms", "1h30m", "1.5s", "0h1m", "999999h"}
	notDurations = []string{"0s", "0.0s", "0h0m", "-1s", "1", "soon", "9999999h", "1d", ""}
	urls         = []string{"http://a:4318", "https://a.example.net/b?c=d#e", "http://[fd00::1]:80/", "https://u:p@a/%20"}
	notURLs      = []string{"a:4318", "http://", "http:///a", "ftp://a", "http://a:b", "http://a b", "http://a/%zz", "http://[::1"}
	globs        = []string{"eth*", "bond?", "e[a-c]0", "e[^0-9]"}
	notGlobs     = []string{"e[", "e[]", "e[a", "e[a-]", `e\\`}
)

func quoted(values []string) (all []string) {
	for _, v := range values {
		all = append(all, `["`+v+`"]`)
	}
	return all
}

// decoded returns the value of a JSON text of flagValues.
func decoded[T any](text string) (v T) {
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		panic(err)
	}
	return v
}

func list(text string) any { return decoded[[]string](text) }

func network(text string) any {
	var all []string
	for name, cidrs := range decoded[map[string][]string](text) {
		all = append(all, name+"="+strings.Join(cidrs, ","))
	}
	return all
}

func reasons(text string) any {
	var all []string
	for key, reason := range decoded[map[string]string](text) {
		all = append(all, key+"="+reason)
	}
	return all
}

// The chart accepts the values that the program accepts, and refuses those that it refuses.
func TestTheChartRefusesWhatTheProgramRefuses(t *testing.T) {
	needHelm(t)
	dir := t.TempDir()
	binary, err := netlab.Build(dir)
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string][]string{"agent": {netlab.AgentOf(binary)}, "aggregator": {binary, "aggregator"}}
	// Flags with values that the chart decides.
	fixed := regexp.MustCompile(`^(lease|data-dir|(grpc|metrics)-listen|.*-(file|ca|cert|key|creds)|tokens|token-review|token-audience|agent-account|require-auth)$`)
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllStringSubmatch(string(must(os.ReadFile(filepath.Join(chart, "templates/_config.tpl")))), -1) {
		if _, ok := flagValues[m[1]]; !ok && !fixed.MatchString(m[1]) {
			t.Errorf("no values of the flag --%s", m[1])
		}
	}
	file := filepath.Join(dir, "config.yaml")
	var accepted, refused [][]string // the arguments of helm for values of different flags, which are checked together
	for flag, f := range flagValues {
		for i, value := range append(slices.Clone(f.accepts), f.refuses...) {
			entry, text := any(value), string(must(json.Marshal(value)))
			if f.entry != nil {
				entry, text = f.entry(value), value
			}
			wrong := "log-format: nowhere\n" // an error in any case, so that nothing starts
			if flag == "log-format" {
				wrong = "log-level: nowhere\n"
			}
			if err := os.WriteFile(file, append(must(yaml.Marshal(map[string]any{flag: entry})), wrong...), 0o600); err != nil {
				t.Fatal(err)
			}
			out, _ := exec.Command(lines[f.command][0], append(slices.Clone(lines[f.command][1:]), "--config", file)...).CombinedOutput()
			want := i >= len(f.accepts)
			if got := strings.Count(string(out), "config.yaml") > 1; got != want && value != "" && value != `{"x":[]}` { // which a file may leave out
				t.Errorf("--%s=%s: got refused %t by the program, want %t: %s", flag, value, got, want, out)
			}
			rounds, round := &accepted, i
			if want {
				rounds, round = &refused, i-len(f.accepts)
			}
			for len(*rounds) <= round {
				*rounds = append(*rounds, nil)
			}
			(*rounds)[round] = append((*rounds)[round], f.value+"="+text)
		}
	}
	check := func(values ...string) error {
		args := []string{"template", "ipwitness", chart, "--set", "aggregator.export.webhookSecret=w"}
		for _, v := range values {
			args = append(args, "--set-json", v)
		}
		_, err := helm(args...)
		return err
	}
	for _, values := range accepted {
		if err := check(values...); err != nil {
			t.Errorf("%q: got %v from the chart, want these accepted as by the program", values, err)
		}
	}
	for _, values := range refused {
		err := check(values...) // it names all values that the schema refuses
		for _, v := range values {
			path, _, _ := strings.Cut(v, "=")
			if (err == nil || !strings.Contains(err.Error(), "'/"+strings.ReplaceAll(path, ".", "/"))) && check(v) == nil {
				t.Errorf("%s: got it accepted by the chart, want it refused as by the program", v)
			}
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Their text is not evaluated as a template.
func TestDashboardsAndRulesAreWhatTheFilesSay(t *testing.T) {
	all := template(t, "ipwitness", "monitoring.dashboards.enabled=true,monitoring.rules.enabled=true")
	var m corev1.ConfigMap
	the(t, all, "ConfigMap", "ipwitness-dashboards", &m)
	files, err := filepath.Glob(filepath.Join(chart, "files/dashboards/*.json"))
	if err != nil || len(files) == 0 || len(files) != len(m.Data) {
		t.Fatalf("got %d dashboards of %d files (%v)", len(m.Data), len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var want, got any
		if err := errors.Join(json.Unmarshal(text, &want), json.Unmarshal([]byte(m.Data[filepath.Base(file)]), &got)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if a, b := mustJSON(t, want), mustJSON(t, got); a != b {
			t.Errorf("%s differs from the dashboard in the ConfigMap", file)
		}
	}
	text, err := os.ReadFile(filepath.Join(chart, "files/rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var want any
	var got struct{ Spec any }
	if err := yaml.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	the(t, all, "PrometheusRule", "ipwitness", &got)
	if a, b := mustJSON(t, want), mustJSON(t, got.Spec); a != b {
		t.Errorf("got\n%s\nwant\n%s", b, a)
	}
}

// An alert is left out by its name, and the other alerts stay unchanged.
func TestAlertsAreLeftOut(t *testing.T) {
	type rule struct {
		Spec struct {
			Groups []struct {
				Name  string
				Rules []map[string]any
			}
		}
	}
	rules := func(more string) (all map[string]string) {
		var r rule
		the(t, template(t, "ipwitness", "monitoring.rules.enabled=true"+more), "PrometheusRule", "ipwitness", &r)
		all = map[string]string{}
		for _, g := range r.Spec.Groups {
			for _, one := range g.Rules {
				all[g.Name+" "+one["alert"].(string)] = mustJSON(t, one)
			}
		}
		return all
	}
	want := rules("")
	for _, name := range []string{"ipwitness-agents IpwitnessAgentsAbsent", "ipwitness-agents IpwitnessAgentDown"} {
		if want[name] == "" {
			t.Fatalf("there is no %s", name)
		}
		delete(want, name)
	}
	if got := rules(",monitoring.rules.disabled={IpwitnessAgentsAbsent,IpwitnessAgentDown}"); !maps.Equal(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The chart sets GOMEMLIMIT to the memory limit, less room for memory that the Go runtime does not
// count, if the limit can be parsed. extraEnv has precedence.
func TestMemoryLimits(t *testing.T) {
	for _, c := range []struct {
		set  string // COMPONENT.… of values
		want []string
	}{
		{"resources.limits.memory=512Mi", []string{"483183820"}},
		{"resources.limits.memory=2Gi", []string{"1932735283"}},
		{"resources.limits.memory=1.5Gi", nil},
		{"resources.limits=null", nil},
		{"resources=null", nil},
		{"extraEnv[0].name=GOMEMLIMIT,COMPONENT.extraEnv[0].value=100MiB", []string{"100MiB"}},
	} {
		for _, component := range []string{"agent", "aggregator"} {
			set := component + "." + strings.ReplaceAll(c.set, "COMPONENT", component)
			var got []string
			for _, e := range container(t, component, set).Env {
				if e.Name == "GOMEMLIMIT" {
					got = append(got, e.Value)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: got GOMEMLIMIT %q, want %q", set, got, c.want)
			}
		}
	}
}

func TestTheEndOfTheLogIsTheTerminationMessage(t *testing.T) {
	for _, component := range []string{"agent", "aggregator"} {
		if got := container(t, component, "witness.cluster=a").TerminationMessagePolicy; got != corev1.TerminationMessageFallbackToLogsOnError {
			t.Errorf("%s: got %s, want %s", component, got, corev1.TerminationMessageFallbackToLogsOnError)
		}
	}
}

func TestImagesArePulledWithTheSecrets(t *testing.T) {
	objects := template(t, "ipwitness", "image.pullSecrets[0].name=registry")
	var d appsv1.DaemonSet
	the(t, objects, "DaemonSet", "ipwitness-agent", &d)
	var s appsv1.StatefulSet
	the(t, objects, "StatefulSet", "ipwitness-aggregator", &s)
	for _, pod := range []corev1.PodSpec{d.Spec.Template.Spec, s.Spec.Template.Spec} {
		if got := pod.ImagePullSecrets; len(got) != 1 || got[0].Name != "registry" {
			t.Errorf("got %v, want the secret registry", got)
		}
	}
}

// container returns the container of the agent or the aggregator.
func container(t *testing.T, component, set string) corev1.Container {
	t.Helper()
	objects := template(t, "ipwitness", set)
	if component == "agent" {
		var d appsv1.DaemonSet
		the(t, objects, "DaemonSet", "ipwitness-agent", &d)
		return d.Spec.Template.Spec.Containers[0]
	}
	var s appsv1.StatefulSet
	the(t, objects, "StatefulSet", "ipwitness-aggregator", &s)
	return s.Spec.Template.Spec.Containers[0]
}

// Artifact Hub reads lists as YAML from annotations, and drops those that it cannot parse.
func TestAnnotationsOfTheChartAreTrue(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var about struct {
		Icon        string
		Maintainers []struct{ Name, URL string }
		Annotations map[string]string
	}
	if err := yaml.Unmarshal(text, &about); err != nil {
		t.Fatal(err)
	}
	if len(about.Maintainers) == 0 || about.Maintainers[0].Name == "" {
		t.Errorf("got maintainers %v, want one", about.Maintainers)
	}
	const raw, page = "https://raw.githubusercontent.com/ipwitness/ipwitness/main/", "https://github.com/ipwitness/ipwitness/blob/main/"
	var links []struct{ Name, URL string }
	if err := yaml.Unmarshal([]byte(about.Annotations["artifacthub.io/links"]), &links); err != nil || len(links) == 0 {
		t.Fatalf("got %v, %v, want links", links, err)
	}
	files := []string{strings.TrimPrefix(about.Icon, raw)}
	for _, l := range links {
		files = append(files, strings.TrimPrefix(l.URL, page))
	}
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			t.Errorf("Chart.yaml links to a file that does not exist: %v", err)
		}
	}
	var crds []struct{ Kind, Version, Name string }
	if err := yaml.Unmarshal([]byte(about.Annotations["artifacthub.io/crds"]), &crds); err != nil || len(crds) != 1 {
		t.Fatalf("got %v, %v, want one custom resource", crds, err)
	}
	var crd struct {
		Metadata struct{ Name string }
		Spec     struct {
			Names    struct{ Kind string }
			Versions []struct{ Name string }
		}
	}
	if text, err = os.ReadFile(filepath.Join(chart, "crds", definitions)); err == nil {
		err = yaml.Unmarshal(text, &crd)
	}
	if err != nil || crds[0].Name != crd.Metadata.Name || crds[0].Kind != crd.Spec.Names.Kind || crds[0].Version != crd.Spec.Versions[0].Name {
		t.Errorf("got %v (%v), want %s %s %s", crds, err, crd.Metadata.Name, crd.Spec.Names.Kind, crd.Spec.Versions[0].Name)
	}
}
