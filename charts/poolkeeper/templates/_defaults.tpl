{{/*
What holds where a value is absent or null: as in values.yaml, which a test compares. Every template begins with it, since
`helm upgrade --reuse-values` brings the values of the earlier chart, where newer keys are not, and `--set KEY=null` removes one.
*/}}
{{- define "poolkeeper.defaults" -}}
{{- $resources := dict "requests" (dict "cpu" "50m" "memory" "128Mi") "limits" (dict "memory" "512Mi") -}}
{{- $templates := dict
  "exemptNamespaces" list
  "images" list
  "volumes" (list "configMap" "downwardAPI" "emptyDir" "ephemeral" "persistentVolumeClaim" "projected" "secret")
  "secrets" (list "*")
  "serviceAccounts" list
  "serviceAccountTokens" false
  "refusedKeys" (list "container.apparmor.security.beta.kubernetes.io/")
  "noNetworkPolicy" true
  "egress" true
  "runtimeClasses" (list "*")
  "placement" true
-}}
{{- $defaults := dict
  "fullnameOverride" ""
  "image" (dict "repository" "localhost/poolkeeper-operator" "tag" "" "digest" "" "pullPolicy" "IfNotPresent")
  "imagePullSecrets" list
  "replicaCount" 2
  "watchNamespaces" list
  "crds" (dict "install" true)
  "policies" (dict "install" true "templates" $templates)
  "rbac" (dict "create" true "clusterRole" true "databaseRoles" false)
  "nodes" (dict "grace" list)
  "serviceAccount" (dict "create" true "name" "" "annotations" dict)
  "log" (dict "format" "json" "level" "info")
  "podMonitor" (dict "install" false "labels" dict)
  "alerts" (dict "install" false "labels" dict "runbooks" "")
  "dashboard" (dict "install" false "labels" (dict "grafana_dashboard" "1"))
  "podLabels" dict
  "podAnnotations" dict
  "nodeSelector" dict
  "tolerations" list
  "affinity" dict
  "priorityClassName" ""
-}}
{{- if kindIs "invalid" .Values.resources -}}
{{- $_ := set .Values "resources" $resources -}}
{{- end -}}
{{- include "poolkeeper.fill" (list .Values $defaults) -}}
{{- end }}

{{/* (list VALUES DEFAULTS): set in VALUES what is in DEFAULTS only, in maps of maps too. */}}
{{- define "poolkeeper.fill" -}}
{{- $values := index . 0 -}}
{{- range $key, $default := index . 1 -}}
{{- if or (not (hasKey $values $key)) (kindIs "invalid" (index $values $key)) -}}
{{- $_ := set $values $key $default -}}
{{- else if kindIs "map" $default -}}
{{- include "poolkeeper.fill" (list (index $values $key) $default) -}}
{{- end -}}
{{- end -}}
{{- end }}
