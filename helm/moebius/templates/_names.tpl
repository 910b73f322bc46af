{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- define "moebius.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 30 letters: names of StatefulSets end at 52, NAME-expert-POOL is one. */}}
{{- define "moebius.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "moebius.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Selectors are immutable: nothing of a version is here. Takes (dict "root" . "component" …). */}}
{{- define "moebius.selectorLabels" -}}
app.kubernetes.io/name: {{ include "moebius.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
moebius/pool: {{ . }}
{{- end }}
{{- end -}}

{{- define "moebius.labels" -}}
{{ include "moebius.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: moebius
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with merge (dict) (.moreLabels | default dict) .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Name, namespace, labels, annotations. Takes root, name, component and, where there are, pool,
     moreLabels and annotations. */}}
{{- define "moebius.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "moebius.labels" . | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "moebius.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "moebius.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Takes root and image, which overrides the one of all roles. */}}
{{- define "moebius.image" -}}
{{- $image := merge (dict) (.image | default dict) .root.Values.image -}}
{{- $name := $image.repository -}}
{{- with $image.registry -}}{{- $name = printf "%s/%s" . $name -}}{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name ($image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* A service of this namespace by its name. Takes root and name. */}}
{{- define "moebius.host" -}}
{{- $host := printf "%s.%s.svc" .name .root.Release.Namespace -}}
{{- with .root.Values.network.clusterDomain -}}{{- $host = printf "%s.%s" $host . -}}{{- end -}}
{{- $host -}}
{{- end -}}

{{- define "moebius.anyAddress" -}}
{{- ternary "[::]" "0.0.0.0" (eq .Values.network.ipFamily "IPv6") -}}
{{- end -}}

{{- define "moebius.loopback" -}}
{{- ternary "[::1]" "127.0.0.1" (eq .Values.network.ipFamily "IPv6") -}}
{{- end -}}

{{/* The folder of the model in a container. */}}
{{- define "moebius.modelPath" -}}
{{- if hasPrefix "pvc://" .Values.model.uri -}}
{{- $parts := splitn "/" 2 (trimPrefix "pvc://" .Values.model.uri) -}}
{{- printf "/models/%s" ($parts._1 | default "") | trimSuffix "/" -}}
{{- else -}}
{{- trimPrefix "file://" .Values.model.uri -}}
{{- end -}}
{{- end -}}

{{- define "moebius.numExperts" -}}
{{- $count := 0 -}}
{{- range .Values.experts.pools -}}{{- $count = add $count (.replicas | int) -}}{{- end -}}
{{- $count -}}
{{- end -}}

{{- define "moebius.tlsSecret" -}}
{{- $own := printf "%s-%s-tls" (include "moebius.fullname" .root) .component -}}
{{- if eq .root.Values.tls.mode "secret" -}}
{{- get .root.Values.tls.secrets .component -}}
{{- else -}}
{{- $own -}}
{{- end -}}
{{- end -}}

{{/* Every name by which a role is dialed, or a client is known. Takes root and component. */}}
{{- define "moebius.tlsNames" -}}
{{- $full := include "moebius.fullname" .root -}}
{{- $names := list -}}
{{- if eq .component "router" -}}
{{- range list $full (printf "%s-router" $full) (printf "*.%s-router" $full) -}}
{{- $names = append $names (include "moebius.host" (dict "root" $.root "name" .)) -}}
{{- end -}}
{{- $names = concat $names (list $full (printf "%s.%s" $full .root.Release.Namespace) "localhost") -}}
{{- else if eq .component "attention" -}}
{{- $names = append $names (include "moebius.host" (dict "root" .root "name" (printf "*.%s-attention" $full))) -}}
{{- else -}}
{{- $names = append $names (printf "%s.%s" .component (include "moebius.host" (dict "root" .root "name" $full))) -}}
{{- end -}}
{{- toJson ($names | uniq) -}}
{{- end -}}
