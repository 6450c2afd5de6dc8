{{- /* The files for --config. Keys are flag names. */}}
{{- define "ipwitness.config.aggregator" -}}
{{- with .Values.witness -}}
cluster: {{ .cluster | quote }}
{{- with .networks }}
network:
  {{- range $name, $cidrs := . }}
  - {{ printf "%s=%s" $name (join "," $cidrs) | quote }}
  {{- end }}
{{- end }}
{{- with .shared }}
shared:
  {{- range $cidr, $reason := . }}
  - {{ printf "%s=%s" $cidr $reason | quote }}
  {{- end }}
{{- end }}
{{- with .routers }}
router:
  {{- range $who, $reason := . }}
  - {{ printf "%s=%s" $who $reason | quote }}
  {{- end }}
{{- end }}
settle: {{ .settle }}
stale-after: {{ .staleAfter }}
node-timeout: {{ .nodeTimeout }}
handover-grace: {{ .handoverGrace }}
leaked-after: {{ .leakedAfter }}
reused-within: {{ .reusedWithin | quote }}
{{- end }}
lease: {{ printf "%s/%s" .Release.Namespace (include "ipwitness.fullname" .) | quote }}
{{- if .Values.aggregator.nodeCondition }}
node-condition: true
{{- end }}
data-dir: /var/lib/ipwitness
retention: {{ .Values.aggregator.retention }}
journal-size: {{ .Values.aggregator.journalSize }}
{{- with .Values.aggregator.export }}
{{- with .otlpEndpoint }}
otlp-endpoint: {{ . | quote }}
{{- end }}
{{- with .alertmanagers }}
alertmanager: {{ toJson . }}
{{- end }}
{{- if .alertmanagerTokenSecret }}
alertmanager-token-file: /etc/ipwitness/alertmanager/token
{{- end }}
{{- with .webhookUrl }}
webhook: {{ . | quote }}
{{- end }}
{{- if .webhookSecret }}
webhook-secret-file: /etc/ipwitness/webhook/secret
{{- end }}
{{- with .natsServers }}
nats: {{ toJson . }}
{{- end }}
{{- if .natsTLSSecret }}
nats-ca: /etc/ipwitness/nats-tls/ca.crt
{{- end }}
{{- if .natsClientCertificate }}
nats-cert: /etc/ipwitness/nats-tls/tls.crt
nats-key: /etc/ipwitness/nats-tls/tls.key
{{- end }}
{{- if .natsCredsSecret }}
nats-creds: /etc/ipwitness/nats/creds
{{- end }}
{{- end }}
grpc-listen: ":9640"
http-listen: ":9641"
metrics-listen: ":9643"
{{- if include "ipwitness.tls" . }}
tls-cert: /etc/ipwitness/tls/tls.crt
tls-key: /etc/ipwitness/tls/tls.key
{{- if .Values.tls.mutual }}
tls-client-ca: /etc/ipwitness/ca/ca.crt
{{- end }}
{{- end }}
{{- with .Values.auth }}
{{- if .tokenReview }}
token-review: true
token-audience: {{ .audience | quote }}
agent-account:
  - {{ printf "%s/%s" $.Release.Namespace (include "ipwitness.account.agent" $) }}
anonymous: {{ .anonymous }}
require-auth: true
{{- end }}
{{- if .tokensSecret }}
tokens: /etc/ipwitness/tokens/tokens
{{- end }}
{{- end }}
log-level: {{ .Values.log.level }}
log-format: {{ .Values.log.format }}
{{- end }}

{{- define "ipwitness.config.agent" -}}
{{- with .Values.agent -}}
aggregator:
  {{- range .aggregators | default (list (printf "%s:9640" (include "ipwitness.replicas" $))) }}
  - {{ . | quote }}
  {{- end }}
wire: {{ .wire | quote }}
{{- with .interfaces }}
interfaces: {{ toJson . }}
{{- end }}
{{- with .excludeInterfaces }}
exclude-interfaces: {{ toJson . }}
{{- end }}
cri-socket: {{ .criSocket | quote }}
http-listen: {{ .httpListen | quote }}
{{- end }}
{{- if include "ipwitness.tls" . }}
tls-ca: /etc/ipwitness/ca/ca.crt
{{- if .Values.tls.mutual }}
tls-cert: /etc/ipwitness/tls/tls.crt
tls-key: /etc/ipwitness/tls/tls.key
{{- end }}
{{- end }}
{{- if .Values.auth.tokenReview }}
token-file: /etc/ipwitness/token/token
{{- end }}
log-level: {{ .Values.log.level }}
log-format: {{ .Values.log.format }}
{{- end }}
