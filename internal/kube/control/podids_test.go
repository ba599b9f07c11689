package control

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
)

func TestPodIDs(t *testing.T) {
	extents := []idExtent{{0, 65536}, {2_000_000, 2_000_009}}
	p := &podIDs{users: extents, groups: extents}
	id := func(n int64) *int64 { return &n }
	no, yes := false, true
	foreign := core.PodSpec{SecurityContext: &core.PodSecurityContext{RunAsUser: id(1_000_650_000)}}
	template := core.PodTemplateSpec{Spec: foreign}
	const users = "the nodes have the user ids 0 to 65536, 2000000 to 2000009"
	for _, c := range []struct {
		object runtime.Object
		want   string
	}{
		{&core.Service{}, ""},
		{&core.Pod{}, ""},
		{&core.Pod{Spec: core.PodSpec{SecurityContext: &core.PodSecurityContext{
			HostUsers: &yes, RunAsUser: id(65534), RunAsGroup: id(65536), FSGroup: id(0), SupplementalGroups: []int64{2_000_009},
		}}}, ""},
		{&core.Pod{Spec: foreign}, "runAsUser of the pod is 1000650000, and " + users},
		{&core.Pod{Spec: core.PodSpec{SecurityContext: &core.PodSecurityContext{RunAsGroup: id(65537)}}}, "runAsGroup of the pod is 65537"},
		{&core.Pod{Spec: core.PodSpec{SecurityContext: &core.PodSecurityContext{FSGroup: id(1_999_999)}}}, "fsGroup of the pod is 1999999"},
		{&core.Pod{Spec: core.PodSpec{SecurityContext: &core.PodSecurityContext{SupplementalGroups: []int64{1, 2_000_010}}}}, "supplementalGroups of the pod is 2000010"},
		{&core.Pod{Spec: core.PodSpec{SecurityContext: &core.PodSecurityContext{HostUsers: &no}}}, "hostUsers is false"},
		{&core.Pod{Spec: core.PodSpec{InitContainers: []core.Container{{Name: "first", SecurityContext: &core.SecurityContext{RunAsUser: id(70000)}}}}}, `runAsUser of container "first" is 70000`},
		{&core.Pod{Spec: core.PodSpec{Containers: []core.Container{{Name: "main", SecurityContext: &core.SecurityContext{RunAsGroup: id(70000)}}}}}, `runAsGroup of container "main" is 70000, and the nodes have the group ids`},
		{&core.Pod{Spec: core.PodSpec{EphemeralContainers: []core.EphemeralContainer{{EphemeralContainerCommon: core.EphemeralContainerCommon{
			Name: "debug", SecurityContext: &core.SecurityContext{RunAsUser: id(70000)},
		}}}}}, `container "debug"`},
		{&apps.Deployment{Spec: apps.DeploymentSpec{Template: template}}, users},
		{&apps.StatefulSet{Spec: apps.StatefulSetSpec{Template: template}}, users},
		{&apps.DaemonSet{Spec: apps.DaemonSetSpec{Template: template}}, users},
		{&apps.ReplicaSet{Spec: apps.ReplicaSetSpec{Template: template}}, users},
		{&batch.Job{Spec: batch.JobSpec{Template: template}}, users},
		{&batch.CronJob{Spec: batch.CronJobSpec{JobTemplate: batch.JobTemplateSpec{Spec: batch.JobSpec{Template: template}}}}, users},
	} {
		validate := func(p *podIDs, old runtime.Object, subresource string, operation admission.Operation) error {
			return p.Validate(t.Context(), admission.NewAttributesRecord(c.object, old, core.Kind("Any").WithVersion("v1"), "default", "it",
				core.Resource("any").WithVersion("v1"), subresource, operation, nil, false, nil), nil)
		}
		err := validate(p, nil, "", admission.Create)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%T %+v: %v, want %q", c.object, c.object, err, c.want)
		}
		if again := validate(p, c.object, "", admission.Update); again != nil {
			t.Errorf("%T that is there already: %v", c.object, again)
		}
		if status := validate(p, nil, "status", admission.Update); status != nil {
			t.Errorf("the status of %T: %v", c.object, status)
		}
		if all := validate(&podIDs{}, nil, "", admission.Create); all != nil && c.want != "hostUsers is false" {
			t.Errorf("%T where nodes have all ids: %v", c.object, all)
		}
	}
}

func TestParseExtents(t *testing.T) {
	got, err := parseExtents("         0       1000          1\n         1     100000      65536\n   2000000     165536         10\n")
	if want := []idExtent{{0, 65536}, {2_000_000, 2_000_009}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parseExtents("nonsense"); err == nil {
		t.Error("nonsense is a map")
	}
}
