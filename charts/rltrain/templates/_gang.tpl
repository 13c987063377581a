{{/* API groups of the PodGroups that the operator makes, as {"groups": [...]}; empty where it makes none. */}}
{{- define "rltrain.podGroups" -}}
{{- $of := dict "volcano" "scheduling.volcano.sh" "schedulerPlugins" "scheduling.x-k8s.io" "kubernetes" "scheduling.k8s.io" }}
{{- $groups := list }}
{{- range .Values.gang.schedulers }}{{ $groups = append $groups (get $of .) }}{{ end }}
{{- if $groups }}{{ dict "groups" $groups | toJson }}{{ else }}{}{{ end }}
{{- end }}
