package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

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
