{{- /* Names, labels and other templates that several files use. */}}
{{- define "ipwitness.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* At most 41 characters, because the name of a StatefulSet may have 52 (its pods have it in the
label controller-revision-hash), and "-aggregator" has 11. */}}
{{- define "ipwitness.fullname" -}}
{{- $name := include "ipwitness.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 41 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 41 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 41 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "ipwitness.selector" -}}
app.kubernetes.io/name: {{ include "ipwitness.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- /* Labels and annotations of all objects, after "metadata:" and name. */}}
{{- define "ipwitness.labels" -}}
{{ include "ipwitness.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Labels of the pods of .component. They do not contain the chart's version, because every
change would replace the pods. The component's own labels take precedence over common ones. */}}
{{- define "ipwitness.podLabels" -}}
{{ include "ipwitness.selector" .root }}
{{- with merge (deepCopy (index .root.Values .component).podLabels) .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The name of the CA: an X.509 commonName has at most 64 characters. */}}
{{- define "ipwitness.authority" -}}
{{ printf "ipwitness authority of %s/%s" .Release.Namespace (include "ipwitness.fullname" .) | trunc 64 }}
{{- end }}

{{- /* GOMEMLIMIT of the agent or the aggregator, which is 90 % of its memory limit. It is empty if
extraEnv sets it, or if the limit is not a whole number of Ki, Mi or Gi: the aggregator then reads the
limit from its cgroup. */}}
{{- define "ipwitness.gomemlimit" -}}
{{- $limit := ((.resources).limits).memory | default "" | toString -}}
{{- range .extraEnv }}{{ if eq .name "GOMEMLIMIT" }}{{ $limit = "" }}{{ end }}{{ end -}}
{{- if regexMatch "^[0-9]+[KMG]i$" $limit -}}
{{- $bytes := int64 (regexFind "^[0-9]+" $limit) -}}
{{- range until (index (dict "K" 1 "M" 2 "G" 3) (regexFind "[KMG]" $limit)) }}{{ $bytes = mul $bytes 1024 }}{{ end -}}
{{ div (mul $bytes 9) 10 | quote }}
{{- end -}}
{{- end }}

{{- define "ipwitness.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "ipwitness.agentImage" -}}
{{- with .Values.image -}}
{{ .repository }}-agent{{ if .agentDigest }}@{{ .agentDigest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "ipwitness.account.agent" -}}
{{ .Values.agent.serviceAccount.name | default (printf "%s-agent" (include "ipwitness.fullname" .)) }}
{{- end }}

{{- define "ipwitness.account.aggregator" -}}
{{ .Values.aggregator.serviceAccount.name | default (printf "%s-aggregator" (include "ipwitness.fullname" .)) }}
{{- end }}

{{- /* "true" if TLS is used, otherwise empty. */}}
{{- define "ipwitness.tls" -}}
{{- if ne .Values.tls.mode "off" }}true{{ end }}
{{- end }}

{{- define "ipwitness.secret.server" -}}
{{- $name := printf "%s-tls" (include "ipwitness.fullname" .) -}}
{{ if eq .Values.tls.mode "existing" }}{{ .Values.tls.existing.serverSecret | default $name }}{{ else }}{{ $name }}{{ end }}
{{- end }}

{{- define "ipwitness.secret.agent" -}}
{{- $name := printf "%s-agent-tls" (include "ipwitness.fullname" .) -}}
{{ if eq .Values.tls.mode "existing" }}{{ .Values.tls.existing.agentSecret | default $name }}{{ else }}{{ $name }}{{ end }}
{{- end }}

{{- /* The volume with ca.crt. cert-manager stores it with each certificate. Agents use the Secret
of their own certificate, because the aggregator's key must not be on every node. */}}
{{- define "ipwitness.volume.ca" -}}
{{- if eq .Values.tls.mode "cert-manager" -}}
secret:
  secretName: {{ include "ipwitness.secret.agent" . }}
  items: [{key: ca.crt, path: ca.crt}]
{{- else -}}
configMap:
  name: {{ include "ipwitness.configMap.ca" . }}
{{- end }}
{{- end }}

{{- define "ipwitness.configMap.ca" -}}
{{- $name := printf "%s-ca" (include "ipwitness.fullname" .) -}}
{{ if eq .Values.tls.mode "existing" }}{{ .Values.tls.existing.caConfigMap | default $name }}{{ else }}{{ $name }}{{ end }}
{{- end }}

{{- /* The host name of all replicas, ready or not, to which agents connect. */}}
{{- define "ipwitness.replicas" -}}
{{ include "ipwitness.fullname" . }}-replicas.{{ .Release.Namespace }}.svc
{{- end }}

{{- /* The host name of the replicas that are ready, for users and Prometheus. */}}
{{- define "ipwitness.host" -}}
{{ include "ipwitness.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{- /* The DNS names in the aggregator's certificate, as JSON. A wildcard stands for the names of the
pods, so that the certificate does not depend on the number of replicas. */}}
{{- define "ipwitness.names" -}}
{{- $host := include "ipwitness.host" . -}}
{{- $full := include "ipwitness.fullname" . -}}
{{- $replicas := include "ipwitness.replicas" . -}}
{{ concat (list $host (printf "%s.cluster.local" $host) (printf "%s.%s" $full .Release.Namespace) $full $replicas (printf "%s.cluster.local" $replicas) (printf "*.%s" $replicas) (printf "*.%s.cluster.local" $replicas) "localhost") .Values.tls.extraNames | uniq | toJson }}
{{- end }}

{{- define "ipwitness.addresses" -}}
{{ concat (list "127.0.0.1" "::1") .Values.tls.extraAddresses | uniq | toJson }}
{{- end }}

{{- /* A probe with the GET request .get and the settings .probe. */}}
{{- define "ipwitness.probe" -}}
httpGet: {{ .get | toJson }}
{{ toYaml .probe }}
{{- end }}

{{- /* Fails if one of some CIDRs has bits beyond its mask, in the words of the program. */}}
{{- define "ipwitness.masked" -}}
{{- $value := first . }}
{{- range $cidr := last . }}
{{- $address := splitList "/" $cidr | first }}
{{- $bits := splitList "/" $cidr | last | int }}
{{- $groups := splitList "." $address }}
{{- $base := dict "size" 8 "separator" "." "write" "%d" "read" "" }}
{{- if contains ":" $cidr }}
{{- $base = dict "size" 16 "separator" ":" "write" "%x" "read" "0x" }}
{{- $groups = splitList "::" $address | first | splitList ":" | compact }}
{{- $rest := splitList "::" $address | rest | join "" | splitList ":" | compact }}
{{- range until (sub 8 (add (len $groups) (len $rest)) | int) }}{{ $groups = append $groups "0" }}{{ end }}
{{- $groups = concat $groups $rest }}
{{- end }}
{{- $masked := list }}
{{- $beyond := false }}
{{- range $i, $group := $groups }}
{{- $unit := 1 }}
{{- range until (sub $base.size (sub $bits (mul $i $base.size) | max 0 | min $base.size) | int) }}{{ $unit = mul $unit 2 }}{{ end }}
{{- $n := printf "%s%s" $base.read $group | int64 }}
{{- if mod $n $unit }}{{ $beyond = true }}{{ end }}
{{- $masked = append $masked (printf $base.write (sub $n (mod $n $unit))) }}
{{- end }}
{{- if $beyond }}
{{- fail (printf "%s: %q has bits beyond its mask: write %s/%d or, for one address, %s/%d" $value $cidr (regexReplaceAll "(:0)+$" (join $base.separator $masked) "::") $bits $address (mul (len $groups) $base.size)) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The number that a resource quantity stands for. */ -}}
{{- define "ipwitness.amount" -}}
{{- $unit := regexFind "[A-Za-z]+$" (toString .) -}}
{{- $units := dict "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- mulf (trimSuffix $unit (toString .) | float64) (get $units $unit | default 1.0) -}}
{{- end }}
