package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

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

func TestWhatDoesNotWorkIsRefused(t *testing.T) {
	needHelm(t)
	for set, want := range map[string]string{
		// Refused by the schema.
		"tls.mode=ssl":                                     "'/tls/mode': value must be one of",
		"witness.settel=3s":                                "additional properties 'settel' not allowed",
		"agnet.wire=tcx":                                   "additional properties 'agnet' not allowed",
		"witness.settle=3":                                 "'/witness/settle': got number, want string",
		"witness.settle=soon":                              "'/witness/settle': 'soon' does not match",
		"witness.networks.pods={10.0.0.0}":                 "'/witness/networks/pods/0'",
		"image.tag=3020260":                                "'/image/tag': got number, want string",
		"image.digest=abc":                                 "'/image/digest'",
		"log.level=loud":                                   "'/log/level'",
		"agent.wire=xdp":                                   "'/agent/wire'",
		"agent.hostPaths={opt}":                            "'/agent/hostPaths/0'",
		"auth.tokenSeconds=60":                             "'/auth/tokenSeconds': minimum: got 60, want 600",
		"rbac.ipam={flannel}":                              "'/rbac/ipam/0'",
		"agent.podAnnotations.a=1":                         "'/agent/podAnnotations/a': got number, want string",
		"aggregator.persistence.accessModes={R}":           "'/aggregator/persistence/accessModes/0'",
		"aggregator.podDisruptionBudget.minAvailable=a":    "'/aggregator/podDisruptionBudget/minAvailable'",
		"aggregator.service.ipFamilies={IPv5}":             "'/aggregator/service/ipFamilies/0'",
		"aggregator.terminationGracePeriodSeconds=2":       "'/aggregator/terminationGracePeriodSeconds': minimum: got 2, want 5",
		"aggregator.service.nodePorts.grpc=70000":          "'/aggregator/service/nodePorts/grpc'",
		"aggregator.ingress.tls[0].secret=web":             "additional properties 'secret' not allowed",
		"monitoring.podMonitor.interval=1.5m":              "'/monitoring/podMonitor/interval'",
		"fullnameOverride=a.b":                             "'/fullnameOverride'",
		"fullnameOverride=1e3":                             "the name 1e3 of the Service must begin with a lower-case letter",
		"nameOverride=UPPER":                               "'/nameOverride'",
		"tls.extraAddresses={banana}":                      "'/tls/extraAddresses/0'",
		"tls.extraNames={a_b}":                             "'/tls/extraNames/0'",
		"tls.existing.serverSecret=a_b":                    "'/tls/existing/serverSecret'",
		"networkPolicy.nodeCIDRs={10.1.0.0/8}":             "networkPolicy.nodeCIDRs: \"10.1.0.0/8\" has bits beyond its mask",
		"aggregator.persistence.size=1.2.3Gi":              "'/aggregator/persistence/size'",
		"agent.podLabels.a=b c":                            "'/agent/podLabels/a'",
		"aggregator.podDisruptionBudget.minAvailable=150%": "'/aggregator/podDisruptionBudget/minAvailable'",
		"aggregator.ingress.tls[0].hosts={A_B}":            "'/aggregator/ingress/tls/0/hosts/0'",
		"aggregator.ingress.tls[0].secretName=UPPER":       "'/aggregator/ingress/tls/0/secretName'",
		"monitoring.dashboards.labels.team=a b":            "'/monitoring/dashboards/labels/team'",
		"agent.nodeSelector.pool=a b":                      "'/agent/nodeSelector/pool'",
		"agent.podAnnotations.bad key=a":                   "invalid propertyName 'bad key'",
		"aggregator.service.type=LoadBalancer,aggregator.service.loadBalancerClass=a b": "'/aggregator/service/loadBalancerClass'",
		"agent.extraCapabilities={CAP_SYS_PTRACE}":                                      "'/agent/extraCapabilities/0'",
		"aggregator.persistence.size=0":                                                 "'/aggregator/persistence/size'",
		"aggregator.persistence.accessModes={ReadWriteOncePod,ReadWriteOnce}":           "'/aggregator/persistence/accessModes'",
		"image.tag=a b":                                  "'/image/tag'",
		"image.repository=UPPER/X":                       "'/image/repository'",
		"aggregator.resources.limits.memory=banana":      "'/aggregator/resources/limits/memory'",
		"agent.resources.requests.cpu=-1":                "'/agent/resources/requests/cpu'",
		"aggregator.tolerations[0].operator=Is":          "'/aggregator/tolerations/0/operator'",
		"agent.tolerations[0].effect=NoRun":              "'/agent/tolerations/0/effect'",
		"agent.updateStrategy.type=Recreate":             "'/agent/updateStrategy/type'",
		"agent.livenessProbe.successThreshold=2":         "'/agent/livenessProbe/successThreshold'",
		"agent.livenessProbe.periodSeconds=0":            "'/agent/livenessProbe/periodSeconds'",
		"aggregator.startupProbe.initialDelaySeconds=-1": "'/aggregator/startupProbe/initialDelaySeconds'",
		"aggregator.ingress.hosts={192.0.2.1}":           "'/aggregator/ingress/hosts/0'",
		"aggregator.resources.requests.memory=1Gi":       "aggregator.resources: the request of memory (1Gi) is more than its limit (512Mi)",
		"agent.resources.limits.cpu=19m":                 "agent.resources: the request of cpu (20m) is more than its limit (19m)",
		"aggregator.service.ipFamilyPolicy=SingleStack,aggregator.service.ipFamilies={IPv4,IPv6}": "SingleStack takes one",
		// Labels that selectors use.
		`commonLabels.app\.kubernetes\.io/name=a`:         "invalid propertyName 'app.kubernetes.io/name'",
		`agent.podLabels.app\.kubernetes\.io/component=a`: "invalid propertyName 'app.kubernetes.io/component'",
		// Refused by the checks in the templates.
		"tls.mode=off": "auth.tokenReview needs TLS",
		"aggregator.podDisruptionBudget.minAvailable=2":                           "must be less than aggregator.replicas",
		"aggregator.podDisruptionBudget.minAvailable=51%":                         "must be less than aggregator.replicas",
		"aggregator.podDisruptionBudget.minAvailable=100%":                        "must be less than aggregator.replicas",
		"tls.certManager.duration=90d":                                            "'/tls/certManager/duration'",
		"auth.tokenReview=false":                                                  "tls.mode needs auth.tokenReview",
		"tls.mode=off,auth.tokenReview=false,auth.tokensSecret=t":                 "auth.tokensSecret needs TLS",
		"tls.mode=off,auth.tokenReview=false,tls.mutual=true":                     "tls.mutual cannot be combined",
		"tls.mode=existing,tls.mutual=true,auth.tokenReview=false":                "tls.mutual needs auth.tokenReview",
		"tls.mode=cert-manager":                                                   "Install cert-manager first",
		"tls.helm.days=3650":                                                      "tls.helm.caDays must be greater than tls.helm.days",
		"monitoring.serviceMonitor.enabled=true":                                  "monitoring.serviceMonitor: this cluster does not have ServiceMonitor",
		"monitoring.podMonitor.enabled=true":                                      "does not have PodMonitor",
		"monitoring.rules.enabled=true":                                           "does not have PrometheusRule",
		"monitoring.podMonitor.enabled=true,agent.httpListen=127.0.0.1:9642":      "with agent.httpListen=127.0.0.1:9642, only the node itself",
		"monitoring.podMonitor.enabled=true,agent.httpListen=[::1]:9642":          "only the node itself",
		"rbac.create=false,aggregator.serviceAccount.create=false":                "aggregator.serviceAccount: it is neither created nor named",
		"aggregator.service.nodePorts.grpc=30640":                                 "which type ClusterIP does not accept",
		"aggregator.service.loadBalancerSourceRanges={192.0.2.0/24}":              "which type ClusterIP does not have",
		"aggregator.service.type=NodePort,aggregator.service.loadBalancerClass=x": "which type NodePort does not have",
		"aggregator.service.type=NodePort,aggregator.service.clusterIP=None":      "type NodePort needs an address",
		"aggregator.service.type=NodePort,aggregator.service.nodePorts.grpc=30001,aggregator.service.nodePorts.http=30001": "grpc and http must differ",
		"agent.hostPaths={/run/}":                                "/run/ is there twice",
		"agent.hostPaths={/opt,/opt}":                            "/opt is there twice",
		"agent.hostPaths={/opt/../x}":                            "has a ..",
		"agent.hide={/etc/cni}":                                  "is one of /run, /var/lib and /etc/cni",
		"agent.hostPaths={/opt},agent.hide={/opt}":               "/opt is there twice",
		"agent.hostPID=true":                                     "agent.hostPID needs",
		"aggregator.hostNetwork=true,agent.httpListen=:9641":     "Choose another port",
		"agent.httpListen=999.1.1.1:9642":                        "'/agent/httpListen'",
		"agent.httpListen=[banana]:9642":                         "'/agent/httpListen'",
		"aggregator.export.webhookUrl=https://hooks.example.net": "aggregator.export.webhookUrl needs webhookSecret",
		"aggregator.export.natsCredsSecret=n":                    "aggregator.export.natsServers: the other settings",
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

// Values that are like those that are refused, and work.
func TestWhatWorksIsAccepted(t *testing.T) {
	needHelm(t)
	for _, set := range []string{
		"aggregator.podDisruptionBudget.minAvailable=50%", "aggregator.replicas=1,aggregator.podDisruptionBudget.minAvailable=100%",
		"aggregator.service.type=LoadBalancer,aggregator.service.loadBalancerClass=example.com/lb,aggregator.service.loadBalancerSourceRanges={10.0.0.0/8}",
		"aggregator.service.type=NodePort,aggregator.service.nodePorts.grpc=0,aggregator.service.nodePorts.http=0",
		"aggregator.service.clusterIP=None",
		"agent.hostPaths={/opt/cni/run,/opt/a..b},agent.hide={/var/lib/kubelet}",
		"agent.hostPID=true,agent.privileged=true",
		"agent.httpListen=10.0.0.1:9642", "agent.httpListen=[fe80::1%eth0]:9642", "agent.httpListen=localhost:9642",
		"agent.hostPID=true,agent.extraCapabilities={SYS_PTRACE}",
		"aggregator.hostNetwork=true",
		"aggregator.persistence.accessModes={ReadWriteOncePod},aggregator.persistence.size=0.5Gi",
		"aggregator.ingress.enabled=true,aggregator.ingress.hosts={a.b},aggregator.ingress.tls[0].hosts={a.b},aggregator.ingress.tls[0].secretName=web",
		"agent.nodeSelector.kubernetes\\.io/os=linux,agent.podAnnotations.Example\\.com/note=a b",
		"monitoring.dashboards.enabled=true,monitoring.dashboards.namespace=monitoring",
		"image.tag=v1.2-rc.1",
		"image.repository=localhost:5000/mirror/ghcr.io/ipwitness/ip__witness",
		"aggregator.resources.requests.memory=0.5Gi,aggregator.resources.limits.cpu=1,agent.resources.requests.memory=250M,agent.resources.limits.memory=null",
		"aggregator.resources.requests.cpu=1.5,aggregator.resources.limits.cpu=1500m,aggregator.resources.limits.ephemeral-storage=1Gi",
		"agent.tolerations[0].operator=Exists,aggregator.tolerations[0].key=a,aggregator.tolerations[0].operator=Equal,aggregator.tolerations[0].effect=NoExecute",
		"agent.readinessProbe.successThreshold=2,agent.tolerations[0].key=a,agent.tolerations[0].operator=Gt,agent.tolerations[0].value=5",
		"agent.updateStrategy.type=OnDelete,agent.updateStrategy.rollingUpdate=null",
		"aggregator.ingress.enabled=true,aggregator.ingress.hosts={1.2.3.example}",
		"aggregator.service.ipFamilyPolicy=SingleStack,aggregator.service.ipFamilies={IPv6}",
	} {
		if _, err := helm("template", "ipwitness", chart, "--set", set); err != nil {
			t.Errorf("--set %s: %v", set, err)
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
		args := append(slices.Clip(line[1:]), "--help")
		if command == "aggregator" { // whose help has topics
			args = append(args, "--all")
		}
		out, err := exec.Command(line[0], args...).Output()
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
	fixed := regexp.MustCompile(`^(lease|data-dir|node-condition|(grpc|metrics)-listen|.*-(file|ca|cert|key|creds)|tokens|token-review|token-audience|agent-account|require-auth)$`)
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
