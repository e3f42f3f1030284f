{{/* Names: the release's name, unless it does not name the chart or fullnameOverride is set. */}}
{{- define "gracectl.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "gracectl" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-gracectl" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Takes a list of the root and a component: the labels that select its objects; no version may ever change them. */}}
{{- define "gracectl.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: gracectl
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "gracectl.labels" -}}
{{- $root := index . 0 -}}
{{ include "gracectl.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Takes a list of the root and the name of a definition: "true" if the cluster has it from another source than this release.
helm refuses to install an object that is not its own. */}}
{{- define "gracectl.foreignDefinition" -}}
{{- $root := index . 0 -}}
{{- with lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" (index . 1) -}}
{{- $annotations := .metadata.annotations | default dict -}}
{{- if or (ne $root.Release.Name (index $annotations "meta.helm.sh/release-name" | default "")) (ne $root.Release.Namespace (index $annotations "meta.helm.sh/release-namespace" | default "")) -}}
true
{{- end -}}
{{- end -}}
{{- end }}

{{- define "gracectl.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "gracectl.serviceAccount" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false, so serviceAccount.name must say which account of yours the controller is" -}}
{{- end -}}
{{- .Values.serviceAccount.name | default (printf "%s-controller" (include "gracectl.fullname" .)) -}}
{{- end }}

{{- define "gracectl.agentServiceAccount" -}}
{{- if not (or .Values.agent.serviceAccount.create .Values.agent.serviceAccount.name) -}}
{{- fail "agent.serviceAccount.create is false, so agent.serviceAccount.name must say which account of yours agents are" -}}
{{- end -}}
{{- .Values.agent.serviceAccount.name | default (printf "%s-agent" (include "gracectl.fullname" .)) -}}
{{- end }}

{{/* The port of host:port. */}}
{{- define "gracectl.port" -}}
{{- splitList ":" . | last -}}
{{- end }}

{{/* Port of the webhook for interruptions; empty without one. */}}
{{- define "gracectl.interruptionsPort" -}}
{{- range .Values.settings.interruption.sources }}
{{- if and (eq .name "http") (not $.Values.dryRun) }}{{ include "gracectl.port" .options.listen }}{{ end -}}
{{- end }}
{{- end }}

{{/* "true" where API servers call the webhooks. */}}
{{- define "gracectl.admits" -}}
{{- if and .Values.settings.admission.listen (not .Values.dryRun) }}true{{ end -}}
{{- end }}

{{/* "true" where cert-manager makes the certificate of admission: auto is where the cluster has it and no certificate is given. */}}
{{- define "gracectl.certManager" -}}
{{- $admission := .Values.settings.admission -}}
{{- $others := or .Values.admission.existingSecret $admission.certificates.certFile $admission.url -}}
{{- if not (include "gracectl.admits" .) -}}
{{- else if eq (toString .Values.admission.certManager.enabled) "true" -}}true
{{- else if and (eq (toString .Values.admission.certManager.enabled) "auto") (not $others) (.Capabilities.APIVersions.Has "cert-manager.io/v1/Certificate") -}}true
{{- end -}}
{{- end }}

{{/* The Secret with the certificate of admission from elsewhere; "" where gracectl makes it itself. */}}
{{- define "gracectl.foreignCertificate" -}}
{{- if .Values.admission.existingSecret -}}
{{ .Values.admission.existingSecret }}
{{- else if include "gracectl.certManager" . -}}
{{ include "gracectl.fullname" . }}-webhook-cert
{{- end -}}
{{- end }}

{{/* The settings file of the controller: .Values.settings, and what only the chart knows. */}}
{{- define "gracectl.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- $providers := concat (list "none" "aws" "clusterapi" "webhook" "exec" "simulated") .Values.image.providers -}}
{{- if not (has $settings.provider.name $providers) -}}
{{- fail (printf "settings.provider.name: %q is no provider; choose one of %s, or name a provider of your own image in image.providers" $settings.provider.name (join ", " $providers)) -}}
{{- end -}}
{{- $admission := $settings.admission -}}
{{- if $admission.listen -}}
{{- if not (or $admission.service $admission.url) -}}
{{- $_ := set $admission "service" (dict "name" (include "gracectl.fullname" .) "namespace" .Release.Namespace) -}}
{{- end -}}
{{- if and (include "gracectl.foreignCertificate" .) (not $admission.certificates.certFile) -}}
{{- $files := dict "certFile" "/tls/tls.crt" "keyFile" "/tls/tls.key" -}}
{{- if include "gracectl.certManager" . -}}
{{- $_ := set $files "injectFrom" (printf "%s/%s" .Release.Namespace (include "gracectl.foreignCertificate" .)) -}}
{{- else -}}
{{- $_ := set $files "caFile" "/tls/ca.crt" -}}
{{- end -}}
{{- $_ := set $admission "certificates" (merge $files $admission.certificates) -}}
{{- end -}}
{{- if and .Values.admission.clientCAConfigMap (not $admission.clientCertificates.caFile) -}}
{{- $_ := set $admission.clientCertificates "caFile" "/client-ca/ca.crt" -}}
{{- end -}}
{{- end -}}
{{ toYaml $settings }}
{{- end }}

{{/* The verbs that the controller has of these: all, or in a dry run those that read. */}}
{{- define "gracectl.verbs" -}}
{{- $root := index . 0 -}}
{{- $verbs := list -}}
{{- range rest . }}{{ if or (not $root.Values.dryRun) (has . (list "get" "list" "watch")) }}{{ $verbs = append $verbs . }}{{ end }}{{ end -}}
[{{ join ", " $verbs }}]
{{- end }}

{{/* Where the Secret of admission is, and the Service. */}}
{{- define "gracectl.admissionNamespace" -}}
{{- (.Values.settings.admission.service | default dict).namespace | default .Release.Namespace -}}
{{- end }}

{{/* Where the Lease is. */}}
{{- define "gracectl.leaseNamespace" -}}
{{- .Values.settings.leaderElection.namespace | default .Release.Namespace -}}
{{- end }}

{{/* What of the settings counts from the next start only: a change of it replaces the pods, other changes do not. */}}
{{- define "gracectl.settingsOfAStart" -}}
{{- $settings := include "gracectl.settings" . | fromYaml -}}
{{- $log := omit $settings.log "level" -}}
{{- $interruption := omit $settings.interruption "leadTime" -}}
{{- $settings = set $settings "assist" (pick $settings.assist "clusterAPI") -}}
{{- $settings = omit $settings "drain" "eviction" "health" "instance" "nodeGroups" "plan" "protection" "replaceFirst" "shutdownGracePeriod" "shutdownGracePeriodByPodPriority" "shutdownGracePeriodCriticalPods" "tracing" "voluntary" "agent" "featureGates" -}}
{{ toYaml (set (set $settings "log" $log) "interruption" $interruption) }}
{{- end }}

{{/* The settings file of the agents: that of the controller, with what differs. They serve no webhooks. */}}
{{- define "gracectl.agentSettings" -}}
{{ toYaml (omit (mergeOverwrite (deepCopy .Values.settings) (deepCopy .Values.agent.settings)) "admission") }}
{{- end }}

{{- define "gracectl.agentSettingsOfAStart" -}}
{{- $settings := include "gracectl.agentSettings" . | fromYaml -}}
{{- $settings = set $settings "log" (omit $settings.log "level") -}}
{{- $settings = set $settings "metrics" (omit $settings.metrics "labels") -}}
{{ toYaml (pick $settings "agent" "client" "clusterName" "eviction" "log" "metrics" "probes") }}
{{- end }}

{{/* "true" where the role needs rights on NodeClaims; without their definition there are none to grant. */}}
{{- define "gracectl.nodeClaims" -}}
{{- $served := or (.Capabilities.APIVersions.Has "karpenter.sh/v1/NodeClaim") (.Capabilities.APIVersions.Has "karpenter.sh/v1beta1/NodeClaim") -}}
{{- if eq (toString .Values.rbac.nodeClaims) "auto" -}}
{{- if or (and .Values.crds.install .Values.crds.nodeClaims) $served }}true{{ end -}}
{{- else if eq (toString .Values.rbac.nodeClaims) "true" -}}true
{{- end -}}
{{- end }}

{{/* Whether pods may be replaced before their eviction. */}}
{{- define "gracectl.replaceFirst" -}}
{{- $settings := .Values.settings.replaceFirst | default dict -}}
{{- if eq (toString .Values.rbac.replaceFirst) "auto" -}}
{{- if or $settings.namespaceSelector $settings.podSelector $settings.always }}true{{ end -}}
{{- else if eq (toString .Values.rbac.replaceFirst) "true" -}}true
{{- end -}}
{{- end }}

{{/* Rules that tell whether a replacement is possible, and how far it is. */}}
{{- define "gracectl.replaceFirstReads" -}}
{{- if include "gracectl.replaceFirst" . }}
  - {apiGroups: [apps], resources: [replicasets, deployments], verbs: [get]}
  {{- if .Capabilities.APIVersions.Has "argoproj.io/v1alpha1/Rollout" }}
  - {apiGroups: [argoproj.io], resources: [rollouts], verbs: [get]}
  {{- end }}
  - {apiGroups: [""], resources: [namespaces, persistentvolumes], verbs: [get]}
  - {apiGroups: [""], resources: [services, resourcequotas], verbs: [list]}
  - {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [list]}
{{- end }}
{{- end }}

{{- define "gracectl.nodeDisruptionBudgets" -}}
{{- $served := .Capabilities.APIVersions.Has "termination.karpenter.sh/v1alpha2/NodeDisruptionBudget" -}}
{{- if eq (toString .Values.rbac.nodeDisruptionBudgets) "auto" -}}
{{- if or .Values.crds.install $served }}true{{ end -}}
{{- else if eq (toString .Values.rbac.nodeDisruptionBudgets) "true" -}}true
{{- end -}}
{{- end }}

{{- define "gracectl.nodeDrains" -}}
{{- if or .Values.crds.install (.Capabilities.APIVersions.Has "gracectl.io/v1alpha1/NodeDrain") }}true{{ end -}}
{{- end }}

{{- define "gracectl.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
