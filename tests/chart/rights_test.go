package main

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

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
	if want := map[string]string{"view": "get list watch owners incidents conflicts findings pools nodes events", "edit": "create conflicts/acknowledge"}; !maps.Equal(parts, want) {
		t.Errorf("got %v, want %v", parts, want)
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
	var withCondition rbacv1.ClusterRole
	conditions := template(t, "ipwitness", "aggregator.nodeCondition=true")
	the(t, conditions, "ClusterRole", "ipwitness-aggregator", &withCondition)
	for writes, all := range map[bool][]object{false: all, true: conditions} {
		var config corev1.ConfigMap
		if the(t, all, "ConfigMap", "ipwitness-aggregator", &config); strings.Contains(config.Data["config.yaml"], "node-condition: true") != writes {
			t.Errorf("the aggregator writes conditions of Nodes: want %t, got\n%s", writes, config.Data["config.yaml"])
		}
	}
	if got, want := writes(withCondition.Rules), []string{"create patch events", "patch nodes/status", "create tokenreviews", "create subjectaccessreviews"}; !slices.Equal(got, want) {
		t.Errorf("in the cluster, with the condition of Nodes: may write %q, want %q", got, want)
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
