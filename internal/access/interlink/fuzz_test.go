package interlink

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"berth.dev/berth/internal/testutil/fuzzbound"
	"berth.dev/berth/test/interlink/virtualnode"
)

// FuzzRequests reads arbitrary bodies of requests, and translates them without a cluster.
// The resulting names and volumes are valid for every request.
func FuzzRequests(f *testing.F) {
	foreign, objects := foreignPod()
	virtualnode.Begin(foreign)
	request, err := objects.Request(foreign)
	if err != nil {
		f.Fatal(err)
	}
	// Kubernetes has no such volumes, but a request may.
	several := createRequest{Pod: podWith(corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{}, HostPath: &corev1.HostPathVolumeSource{Path: "/"},
	})}
	for _, seed := range []any{
		several,
		request, request.ForPlugin(), []any{request.ForPlugin()}, foreign, []any{foreign},
		logRequest{Namespace: "a", PodName: "b", PodUID: uid, Opts: logOptions{Tail: 1}},
	} {
		content, err := json.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		fuzzbound.Watch(t)
		if request, err := readLogs(body); err == nil {
			request.apiOptions()
		}
		if pod, err := readPod(body); err == nil {
			lost(pod, "", "")
		}
		if pods, err := readPods(body); err == nil {
			for i := range pods {
				report(&pods[i], &pods[i], "", "")
			}
		}
		request, err := readCreate(body)
		if err != nil {
			return
		}
		result, err := translate(request)
		if err != nil {
			return
		}
		if len(validation.IsDNS1123Label(result.pod.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(result.pod.Name)) > 0 {
			t.Errorf("the pod is %s/%s", result.pod.Namespace, result.pod.Name)
		}
		for _, volume := range result.pod.Spec.Volumes {
			if source := volume.VolumeSource; source.HostPath != nil || source.PersistentVolumeClaim != nil || source == (corev1.VolumeSource{}) {
				t.Errorf("a volume is %+v", volume)
			}
		}
	})
}
