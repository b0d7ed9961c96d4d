{{- /* The addresses of all placement drivers, separated by commas. */}}
{{- define "sbp.endpoints" -}}
{{- range $n := until (int .Values.pd.replicas) -}}
{{- if $n }},{{ end }}{{ $.Release.Name }}-pd-{{ $n }}.{{ $.Release.Name }}-pd.{{ $.Release.Namespace }}.svc:12378
{{- end }}
{{- end }}
