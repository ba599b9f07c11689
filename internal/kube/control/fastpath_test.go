package control

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/apis/core"

	"berth.dev/berth/internal/base/cluster"
)

func TestFastPathAnnotations(t *testing.T) {
	annotated := func(value string) metav1.ObjectMeta {
		meta := metav1.ObjectMeta{Name: "here"}
		if value != "" {
			meta.Annotations = map[string]string{cluster.FastPathAnnotation: value}
		}
		return meta
	}
	admit := func(namespace string, object runtime.Object, kind, resource string, operation admission.Operation) error {
		t.Helper()
		known := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
		if err := known.Add(&corev1.Namespace{ObjectMeta: annotated(namespace)}); err != nil {
			t.Fatal(err)
		}
		plugin := &namespaceFastPath{Handler: admission.NewHandler(), namespaces: listers.NewNamespaceLister(known)}
		return plugin.Admit(t.Context(), admission.NewAttributesRecord(object, nil, core.Kind(kind).WithVersion("v1"), "here", "here",
			core.Resource(resource).WithVersion("v1"), "", operation, nil, false, nil), nil)
	}
	for _, c := range []struct {
		namespace, pod, want string
		refused              bool
	}{
		{"", "", "", false},
		{"", "off", "off", false},
		{"off", "", "off", false},
		{"off", "auto", "auto", false},
		{"", "false", "false", true},
		{"off", "no", "no", true},
	} {
		pod := &core.Pod{ObjectMeta: annotated(c.pod)}
		err := admit(c.namespace, pod, "Pod", "pods", admission.Create)
		if got := pod.Annotations[cluster.FastPathAnnotation]; got != c.want || apierrors.IsForbidden(err) != c.refused {
			t.Errorf("a pod with %q in a namespace with %q has %q, %v", c.pod, c.namespace, got, err)
		}
	}
	for _, operation := range []admission.Operation{admission.Create, admission.Update} {
		for value, refused := range map[string]bool{"": false, "auto": false, "off": false, "false": true} {
			err := admit("", &core.Namespace{ObjectMeta: annotated(value)}, "Namespace", "namespaces", operation)
			if apierrors.IsForbidden(err) != refused {
				t.Errorf("%s a namespace with %q: %v", operation, value, err)
			}
		}
	}
	if err := admit("", &core.Pod{ObjectMeta: annotated("false")}, "Pod", "pods", admission.Update); err != nil {
		t.Errorf("a pod that exists: %v", err)
	}
}
