package control

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"

	"berth.dev/berth/internal/base/cluster"
)

func TestFolderMounts(t *testing.T) {
	plugin := &folderMounts{admission.NewHandler(admission.Create), []cluster.FolderMount{
		{Source: "/home/alice", Target: "/home/alice"}, {Source: "/scratch", Target: "/data", ReadOnly: true},
	}}
	admit := func(object runtime.Object, resource, subresource string) {
		t.Helper()
		attributes := admission.NewAttributesRecord(object, nil, core.Kind("Pod").WithVersion("v1"), "default", "p",
			core.Resource(resource).WithVersion("v1"), subresource, admission.Create, nil, false, nil)
		if err := plugin.Admit(t.Context(), attributes, nil); err != nil {
			t.Fatal(err)
		}
	}
	pod := &core.Pod{Spec: core.PodSpec{
		InitContainers: []core.Container{{Name: "first"}},
		Containers:     []core.Container{{Name: "own", VolumeMounts: []core.VolumeMount{{Name: "mine", MountPath: "/data"}}}},
	}}
	for range 2 { // a pod may be admitted again
		admit(pod, "pods", "")
	}
	if len(pod.Spec.Volumes) != 2 || pod.Spec.Volumes[1].HostPath.Path != "/scratch" {
		t.Errorf("volumes %+v", pod.Spec.Volumes)
	}
	if m := pod.Spec.InitContainers[0].VolumeMounts; len(m) != 2 || m[1].MountPath != "/data" || !m[1].ReadOnly || m[0].ReadOnly {
		t.Errorf("mounts of a container that has none: %+v", m)
	}
	if m := pod.Spec.Containers[0].VolumeMounts; len(m) != 2 || m[0].Name != "mine" || m[1].MountPath != "/home/alice" {
		t.Errorf("mounts of a container that has its own: %+v", m)
	}
	other := &core.Pod{Spec: core.PodSpec{Containers: []core.Container{{}}}}
	admit(other, "pods", "binding")
	admit(&core.Service{}, "services", "")
	if len(other.Spec.Volumes) > 0 {
		t.Error("something else than a new pod was changed")
	}
}
