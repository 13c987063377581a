{{/* What the admission policies of runs and of services have in common: the profile that an object has, and what that allows. */}}
{{- define "rltrain.profileVariables" -}}
# Each expression is evaluated once for every profile; all but the object's own let everything pass.
- name: profile
  expression: object.spec.?profile.orValue(null)
- name: applies
  expression: >-
    variables.profile == null ? params.spec.?default.orValue(false) : variables.profile == params.metadata.name
- name: by
  expression: "', allowed by profile ' + params.metadata.name + ': '"
- name: ask
  expression: "'. Ask ' + params.spec.?contact.orValue('the platform team') + ' for more.'"
- name: defaults
  expression: params.spec.?defaults.orValue({})
- name: selector
  expression: params.spec.?allow.?namespaces.orValue(null)
- name: labels
  expression: "has(namespaceObject.metadata.labels) ? namespaceObject.metadata.labels : {}"
- name: image
  expression: object.spec.?image.orValue(null)
- name: ownImage
  expression: >-
    variables.image != null && !(variables.image in [params.spec.?images.?cpu.orValue(null),
    params.spec.?images.?gpu.orValue(null), variables.defaults.?image.orValue(null)])
- name: images
  expression: params.spec.?allow.?images.?patterns.orValue(null)
- name: imageAllowed
  expression: >-
    variables.images == null || variables.images.exists(one,
    variables.image.matches('^' + one.replace('.', '\\.').replace('*', '.*') + '$'))
- name: sources
  expression: params.spec.?allow.?modelSources.orValue(null)
- name: secretNames
  expression: params.spec.?allow.?environment.?secrets.orValue(null)
- name: wrongSecrets
  expression: >-
    variables.secretNames == null ? [] : object.spec.?secrets.orValue([]).filter(name,
    !variables.secretNames.exists(one, name.matches('^' + one.replace('.', '\\.').replace('*', '.*') + '$')))
{{- end -}}

{{- define "rltrain.profileValidations" -}}
- expression: >-
    !variables.applies || variables.selector == null || (
    variables.selector.?matchLabels.orValue({}).all(key,
    key in variables.labels && variables.labels[key] == variables.selector.matchLabels[key]) &&
    variables.selector.?matchExpressions.orValue([]).all(one,
    one.operator == 'In' ? one.key in variables.labels && variables.labels[one.key] in one.values :
    one.operator == 'NotIn' ? !(one.key in variables.labels && variables.labels[one.key] in one.values) :
    (one.key in variables.labels) == (one.operator == 'Exists')))
  messageExpression: >-
    'metadata.namespace: found \'' + object.metadata.namespace + '\'' + variables.by + 'namespaces with the labels ' +
    (variables.selector.?matchLabels.orValue({}).map(key, key + '=' + variables.selector.matchLabels[key]) +
    variables.selector.?matchExpressions.orValue([]).map(one, one.key + ' ' + one.operator +
    (size(one.?values.orValue([])) == 0 ? '' : ' (' + one.values.join(', ') + ')'))).join(', ') + variables.ask
- expression: "!variables.applies || !variables.ownImage || variables.imageAllowed"
  messageExpression: >-
    'spec.image: found \'' + variables.image + '\'' + variables.by +
    (size(variables.images) == 0 ? 'none' : variables.images.join(', ')) + variables.ask
- expression: >-
    !variables.applies || !variables.ownImage || !variables.imageAllowed ||
    !params.spec.?allow.?images.?digestRequired.orValue(false) ||
    variables.image.matches('@sha256:[0-9a-f]{64}$')
  messageExpression: >-
    'spec.image: found \'' + variables.image + '\'' + variables.by +
    'an image with its digest, such as image@sha256:...' + variables.ask
- expression: "!variables.applies || size(variables.wrongSecrets) == 0"
  messageExpression: >-
    'spec.secrets: found \'' + variables.wrongSecrets[0] + '\'' + variables.by +
    (size(variables.secretNames) == 0 ? 'none' : variables.secretNames.join(', ')) + variables.ask
{{- end -}}

{{/* The binding of the policy `name` to every profile. */}}
{{- define "rltrain.profileBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels: {{- include "rltrain.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
  paramRef:
    selector: {}
    # Without any profile there is the operator's own, which only the operator knows.
    parameterNotFoundAction: Allow
  {{- with .root.Values.watch.namespaces }}
  matchResources:
    namespaceSelector:
      matchExpressions:
        - key: kubernetes.io/metadata.name
          operator: In
          values: {{- toYaml . | nindent 12 }}
  {{- end }}
{{- end -}}
