{{/* The operator's objects: "<release>-operator", or "<release>-poolkeeper-operator" when the release is called otherwise. */}}
{{- define "poolkeeper.operator" -}}
{{- $name := ternary .Release.Name (printf "%s-poolkeeper" .Release.Name) (contains "poolkeeper" .Release.Name) -}}
{{- printf "%s-operator" ($name | trunc 48 | trimSuffix "-") -}}
{{- end }}

{{- define "poolkeeper.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "poolkeeper.operator" .) -}}
{{- end }}

{{- define "poolkeeper.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{- define "poolkeeper.selector" -}}
app.kubernetes.io/name: poolkeeper
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "poolkeeper.labels" -}}
{{ include "poolkeeper.selector" . }}
app.kubernetes.io/part-of: poolkeeper
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end }}
