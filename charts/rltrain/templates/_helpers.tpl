{{- define "rltrain.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rltrain.selector" -}}
app.kubernetes.io/name: rltrain
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "rltrain.labels" -}}
{{ include "rltrain.selector" . }}
{{ include "rltrain.commonLabels" . }}
{{- end -}}

{{- define "rltrain.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: rltrain
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "rltrain.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "rltrain.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "rltrain.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "rltrain.trainerImage" -}}
{{- $image := .root.Values.trainerImage -}}
{{- with index $image.digests .kind -}}
{{- printf "%s@%s" $image.repository . -}}
{{- else -}}
{{- printf "%s:%s-%s" $image.repository (default .root.Chart.AppVersion $image.tag) .kind -}}
{{- end -}}
{{- end -}}

{{/* The default profile as JSON: the values' spec, with the chart's trainer images where it names none. */}}
{{- define "rltrain.profile" -}}
{{- $spec := deepCopy .Values.defaultProfile.spec -}}
{{- $images := dict "images" (dict "cpu" (include "rltrain.trainerImage" (dict "root" . "kind" "cpu")) "gpu" (include "rltrain.trainerImage" (dict "root" . "kind" "gpu"))) -}}
{{- $_ := mergeOverwrite $images $spec -}}
{{- $metadata := dict "name" .Values.defaultProfile.name "labels" (dict "app.kubernetes.io/name" "rltrain" "app.kubernetes.io/part-of" "rltrain") -}}
{{- dict "apiVersion" "rltrain.dev/v1alpha1" "kind" "RLTrainingProfile" "metadata" $metadata "spec" $images | toJson -}}
{{- end -}}

{{/* Security of every container: Pod Security "restricted". */}}
{{- define "rltrain.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "rltrain.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Fails where a cluster has no Prometheus operator. Only a cluster has apiregistration.k8s.io: `helm template` knows none. */}}
{{- define "rltrain.needsPrometheusOperator" -}}
{{- $has := .root.Capabilities.APIVersions -}}
{{- if and ($has.Has "apiregistration.k8s.io/v1") (not ($has.Has "monitoring.coreos.com/v1")) -}}
{{- fail (printf "%s: this cluster does not know monitoring.coreos.com/v1; install the Prometheus operator first, or set it to false" .value) -}}
{{- end -}}
{{- end -}}
