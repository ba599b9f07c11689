package workload

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestSelectionOfLogs(t *testing.T) {
	object := func(kind, name string) *target {
		return &target{single: true, object: Object{Unstructured: &unstructured.Unstructured{Object: map[string]any{
			"kind": kind, "metadata": map[string]any{"name": name},
		}}}}
	}
	job, web := object("Job", "main"), object("Deployment", "web")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"}}}
	for _, test := range []struct {
		values          []string
		job, web, plain bool
	}{
		{nil, true, false, false},
		{[]string{"none"}, false, false, false},
		{[]string{"job/main"}, true, false, true},
		{[]string{"Deployment/web"}, false, true, true},
		{[]string{"job/other"}, false, false, false},
		{[]string{"job/main", "deployment/web"}, true, true, false},
		{[]string{"app=x"}, true, true, false},
		{[]string{"example.org/app in (x)"}, false, false, false},
	} {
		s, err := NewSelection(test.values)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.includes(job, pod, true); got != test.job {
			t.Errorf("%q: the job's pod: %t", test.values, got)
		}
		if got := s.includes(web, pod, false); got != test.web {
			t.Errorf("%q: the server's pod: %t", test.values, got)
		}
		if got := s.plain([]*target{job, web}); got != test.plain {
			t.Errorf("%q: plain %t", test.values, got)
		}
	}
	for _, wrong := range [][]string{{"none", "job/x"}, {"job/"}, {"a b"}} {
		if _, err := NewSelection(wrong); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
	if s, _ := NewSelection([]string{"job/other"}); len(s.unknown([]*target{job})) != 1 {
		t.Error("an object that is not there is not named")
	}
}
