{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* The flags of all roles. Takes root, role and settings. */}}
{{- define "moebius.commonArgs" -}}
{{- $values := .root.Values -}}
- --name=$(POD_NAME)
- --model={{ include "moebius.modelPath" .root }}
{{- with $values.model.dtype }}
- --dtype={{ . }}
{{- end }}
{{- with $values.model.span }}
- --span={{ . | int64 }}
{{- end }}
{{- with $values.model.groupFill }}
- --group-fill={{ . }}
{{- end }}
- --http-listen={{ include "moebius.anyAddress" .root }}:7412
- --admin-listen={{ include "moebius.loopback" .root }}:7411
- --transport={{ $values.transport }}
- --log-format={{ $values.logFormat }}
- --drain-seconds={{ $values.drainSeconds | int }}
{{- with .settings.threads }}
- --threads={{ . | int }}
{{- end }}
{{- with .settings.tier }}
- --tier={{ . }}
{{- end }}
{{- if eq $values.tls.mode "disabled" }}
- --insecure
{{- else }}
- --tls-ca=/etc/moebius/tls/ca.crt
- --tls-cert=/etc/moebius/tls/tls.crt
- --tls-key=/etc/moebius/tls/tls.key
{{- range $values.tls.allowedPeers }}
- --tls-peer={{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Takes root and component. */}}
{{- define "moebius.tlsVolume" -}}
- name: tls
  secret:
    secretName: {{ include "moebius.tlsSecret" . }}
    defaultMode: 0440
{{- end -}}

{{- define "moebius.testVolumes" -}}
{{- if ne .Values.tls.mode "disabled" }}
{{ include "moebius.tlsVolume" (dict "root" . "component" "client") }}
{{- end }}
{{- if .Values.apiKeys.secret }}
- name: api-key
  secret:
    secretName: {{ .Values.apiKeys.testSecret }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "moebius.testVolumeMounts" -}}
{{- if ne .Values.tls.mode "disabled" }}
- name: tls
  mountPath: /etc/moebius/tls
  readOnly: true
{{- end }}
{{- if .Values.apiKeys.secret }}
- name: api-key
  mountPath: /etc/moebius/api-key
  readOnly: true
{{- end }}
{{- end -}}

{{- define "moebius.volumes" -}}
{{- $values := .root.Values -}}
{{- if ne $values.tls.mode "disabled" }}
{{ include "moebius.tlsVolume" (dict "root" .root "component" .role) }}
{{- end }}
{{- if and (eq .role "router") $values.apiKeys.secret }}
- name: clients
  secret:
    secretName: {{ $values.apiKeys.secret }}
    defaultMode: 0440
{{- end }}
{{- if hasPrefix "pvc://" $values.model.uri }}
- name: model
  persistentVolumeClaim:
    claimName: {{ (splitn "/" 2 (trimPrefix "pvc://" $values.model.uri))._0 }}
    readOnly: true
{{- else if $values.model.init.image }}
- name: model
  emptyDir:
    {{- with $values.model.init.sizeLimit }}
    sizeLimit: {{ . }}
    {{- else }} {}
    {{- end }}
{{- end }}
{{- with .settings.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "moebius.volumeMounts" -}}
{{- $values := .root.Values -}}
{{- if ne $values.tls.mode "disabled" }}
- name: tls
  mountPath: /etc/moebius/tls
  readOnly: true
{{- end }}
{{- if and (eq .role "router") $values.apiKeys.secret }}
- name: clients
  mountPath: /etc/moebius/clients
  readOnly: true
{{- end }}
{{- if or (hasPrefix "pvc://" $values.model.uri) $values.model.init.image }}
- name: model
  mountPath: /models
  readOnly: true
{{- end }}
{{- with .settings.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "moebius.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
{{ toYaml .settings }}
{{- end -}}

{{- define "moebius.initContainers" -}}
{{- $init := .root.Values.model.init -}}
- name: fetch-model
  image: {{ $init.image }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  {{- with $init.command }}
  command:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $init.args }}
  args:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $init.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    {{- toYaml $init.resources | nindent 4 }}
  securityContext:
    {{- toYaml .root.Values.containerSecurityContext | nindent 4 }}
  volumeMounts:
    - name: model
      mountPath: /models
{{- end -}}

{{- define "moebius.container" -}}
- name: {{ .role }}
  image: {{ include "moebius.image" (dict "root" .root "image" .settings.image) }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [/usr/local/bin/moebius-{{ .role }}]
  args:
    {{- include "moebius.commonArgs" . | nindent 4 }}
    {{- toYaml .args | nindent 4 }}
    {{- with .settings.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    {{- with .settings.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - {name: http, containerPort: 7412}
    {{- range $name, $port := .ports }}
    - {name: {{ $name }}, containerPort: {{ $port }}}
    {{- end }}
  startupProbe:
    {{- include "moebius.probe" (dict "path" "/startupz" "settings" .root.Values.probes.startup) | nindent 4 }}
  readinessProbe:
    {{- include "moebius.probe" (dict "path" "/readyz" "settings" .root.Values.probes.readiness) | nindent 4 }}
  livenessProbe:
    {{- include "moebius.probe" (dict "path" "/livez" "settings" .root.Values.probes.liveness) | nindent 4 }}
  resources:
    {{- toYaml .settings.resources | nindent 4 }}
  securityContext:
    {{- toYaml .root.Values.containerSecurityContext | nindent 4 }}
  {{- with include "moebius.volumeMounts" . | trim }}
  volumeMounts:
    {{- . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "moebius.podSpec" -}}
serviceAccountName: {{ include "moebius.serviceAccountName" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add (.root.Values.drainSeconds | int) 15 }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .settings.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- if .settings.topologySpreadConstraints }}
  {{- toYaml .settings.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "moebius.selectorLabels" (dict "root" .root "component" .role) | nindent 8 }}
  {{- end }}
{{- if .root.Values.model.init.image }}
initContainers:
  {{- include "moebius.initContainers" . | nindent 2 }}
{{- end }}
containers:
  {{- include "moebius.container" . | nindent 2 }}
{{- with include "moebius.volumes" . | trim }}
volumes:
  {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A role's StatefulSet. Takes root, role, name, service, replicas, settings, args, ports and, for
     experts, pool. Members come in any order and are needed all at once: Parallel. */}}
{{- define "moebius.workload" -}}
{{- $labels := dict "root" .root "component" .role "pool" .pool -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  {{- include "moebius.metadata" (merge (dict "name" .name) $labels) | nindent 2 }}
spec:
  serviceName: {{ .service }}
  replicas: {{ .replicas | int }}
  podManagementPolicy: Parallel
  updateStrategy: {type: RollingUpdate}
  selector:
    matchLabels:
      {{- include "moebius.selectorLabels" $labels | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "moebius.selectorLabels" $labels | nindent 8 }}
        moebius/model: {{ .root.Values.model.name | quote }}
        {{- with merge (dict) .settings.podLabels .root.Values.commonLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with merge (dict) .settings.podAnnotations .root.Values.commonAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- include "moebius.podSpec" . | nindent 6 }}
{{- end -}}
