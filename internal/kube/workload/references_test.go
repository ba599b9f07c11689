package workload

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func TestPodReferences(t *testing.T) {
	var spec corev1.PodSpec
	if err := yaml.UnmarshalStrict([]byte(`
serviceAccountName: account
imagePullSecrets: [{name: not-needed}]
initContainers:
- name: first
  envFrom: [{secretRef: {name: all}}, {configMapRef: {name: perhaps, optional: true}}]
containers:
- name: main
  env:
  - {name: A, value: plain}
  - {name: B, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
  - {name: C, valueFrom: {configMapKeyRef: {name: settings, key: c}}}
  - {name: D, valueFrom: {secretKeyRef: {name: perhaps, key: d, optional: true}}}
volumes:
- {name: a, configMap: {name: files, items: [{key: x, path: x}, {key: z, path: z}]}}
- {name: b, secret: {secretName: keys}}
- {name: c, emptyDir: {}}
- name: d
  projected:
    sources:
    - serviceAccountToken: {path: token}
    - configMap: {name: authority}
    - secret: {name: perhaps, optional: true}
`), &spec); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, needed := range references(spec) {
		got = append(got, needed.String())
	}
	want := []string{
		`ServiceAccount "account"`, `Secret "all"`, `key "c" of ConfigMap "settings"`,
		`key "x" of ConfigMap "files"`, `key "z" of ConfigMap "files"`, `Secret "keys"`, `ConfigMap "authority"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestMissingReferencesAreReportedOnlyIfNothingElseRuns(t *testing.T) {
	start := time.Unix(1000, 0)
	later := start.Add(missingTimeout)
	see := func(s *stuckPods, pods ...*corev1.Pod) {
		for _, pod := range pods {
			s.updatePod(pod, start)
			s.handlePod(pod, start)
		}
	}
	s := newStuckPods(false)
	see(s, pendingPod("a", "CreateContainerConfigError"))
	if len(s.lacking(start)) != 0 {
		t.Error("it is said before controllers could make pods")
	}
	if len(s.lacking(later)) != 1 {
		t.Error("it is not said of the only pod")
	}
	see(s, pendingPod("b", "CreateContainerConfigError"))
	if len(s.lacking(later)) != 2 {
		t.Error("it is not said of two that wait")
	}
	see(s, runningPod("c"))
	if len(s.lacking(later)) != 0 {
		t.Error("it is said although another pod runs")
	}
	done := runningPod("c")
	done.Status.Phase = corev1.PodSucceeded
	see(s, done, pendingPod("d", "ContainerCreating"))
	if len(s.lacking(later)) != 0 {
		t.Error("it is said although another pod is about to run")
	}
	s.forget("d", later)
	if len(s.lacking(later)) != 2 {
		t.Error("it is not said when the others are gone")
	}
	see(s, pendingPod("e", "ErrImagePull"))
	if len(s.lacking(later)) != 2 {
		t.Error("another trouble counts as an object that is missing, or hides one")
	}
}

func TestMakesPods(t *testing.T) {
	for kind, want := range map[string]bool{"batch/v1 CronJob": true, "v1 ReplicationController": true, "v1 Pod": false, "v1 ConfigMap": false, "example.org/v1 CronJob": false} {
		version, name, _ := strings.Cut(kind, " ")
		object := Object{Unstructured: &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": name}}}
		if makesPods(object) != want {
			t.Errorf("%s: want %v", kind, want)
		}
	}
}
