{{/*
The operator's rights, as runtime/rights.py lists them with the reason for each; a test compares the two.
Secrets: `get` by name only, never list or watch.
*/}}
{{- define "poolkeeper.rules" -}}
- apiGroups: [poolkeeper.dev]
  resources: [databases, taskqueues, workerpools, providerquotas]
  verbs: [get, list, watch]
- apiGroups: [poolkeeper.dev]
  resources: [databases/status, taskqueues/status, workerpools/status, providerquotas/status]
  verbs: [patch]
- apiGroups: [poolkeeper.dev]
  resources: [workerpools]
  verbs: [patch]
- apiGroups: [poolkeeper.dev]
  resources: [taskqueues]
  verbs: [patch]
- apiGroups: [poolkeeper.dev]
  resources: [workerpools/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- if .Values.rbac.databaseRoles }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch]
{{- end }}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- end }}

{{/* In the release's own namespace: one Lease, which must be made before its name can be granted. */}}
{{- define "poolkeeper.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "poolkeeper.operator" . | quote }}]
  verbs: [get, update]
{{- end }}

{{/* What is cluster-wide even when the operator keeps single namespaces: who the cluster is, which schemas and
admission policies of ours it has, which nodes are about to go. */}}
{{- define "poolkeeper.clusterRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [namespaces]
  resourceNames: [kube-system]
  verbs: [get]
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingadmissionpolicies, validatingadmissionpolicybindings]
  resourceNames: [taskqueue-deletion.poolkeeper.dev]
  verbs: [get]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get]
{{- end }}
