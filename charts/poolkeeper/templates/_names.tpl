{{/*
Names and labels. No name is longer than 63 characters or ends in "-"; what had to be cut ends in a hash of the whole, so
that two long names stay two. The operator's objects: "<release>-operator", or "<release>-poolkeeper-operator" when the
release is called otherwise, or fullnameOverride.
*/}}
{{- define "poolkeeper.operator" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := ternary .Release.Name (printf "%s-poolkeeper" .Release.Name) (contains "poolkeeper" .Release.Name) -}}
{{- printf "%s-operator" (include "poolkeeper.cut" (list $name 47)) -}}
{{- end -}}
{{- end }}

{{/* Of what belongs to no namespace: releases of one name in two namespaces must not share it. */}}
{{- define "poolkeeper.clusterWide" -}}
{{- include "poolkeeper.cut" (list (printf "%s.%s" .Release.Namespace (include "poolkeeper.operator" .)) 63) -}}
{{- end }}

{{/* (list NAME MOST): NAME in at most MOST characters. */}}
{{- define "poolkeeper.cut" -}}
{{- $name := index . 0 -}}
{{- $most := index . 1 -}}
{{- if le (len $name) $most -}}
{{- $name -}}
{{- else -}}
{{- printf "%s-%s" ($name | trunc (int (sub $most 9)) | trimAll "-.") ($name | sha256sum | trunc 8) -}}
{{- end -}}
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
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "poolkeeper.labels" -}}
{{ include "poolkeeper.selector" . }}
app.kubernetes.io/part-of: poolkeeper
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end }}
