package wishes

import (
	"context"
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// above makes the pod the child of an object.
func above(pod *v1.Pod, version, kind, name string) *v1.Pod {
	yes := true
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: name, UID: "u", Controller: &yes}}
	return pod
}

// made returns a Get over objects, by resource and name.
func made(objects map[string]map[string]any) Get {
	return func(_ context.Context, of Reference) (*unstructured.Unstructured, error) {
		content := objects[of.Resource+"/"+of.Name]
		if content == nil {
			return nil, nil
		}
		return &unstructured.Unstructured{Object: content}, nil
	}
}

func replicated(name string, replicas, parallel int64, before ...any) map[string]any {
	job := map[string]any{"name": name, "replicas": replicas, "template": map[string]any{"spec": map[string]any{"parallelism": parallel, "completions": parallel}}}
	if before != nil {
		job["dependsOn"] = before
	}
	return job
}

func TestOwnersAreReadUpwards(t *testing.T) {
	yes := true
	set := func(jobs ...any) map[string]map[string]any {
		return map[string]map[string]any{
			"jobs/set-workers-0": {"metadata": map[string]any{"uid": "u", "ownerReferences": []any{
				map[string]any{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set", "controller": yes},
			}}},
			"jobsets/set": {
				"metadata": map[string]any{"annotations": map[string]any{"slurmjob.slinky.slurm.net/partition": "long"}},
				"spec":     map[string]any{"replicatedJobs": jobs},
			},
		}
	}
	pod := func() *v1.Pod {
		p := above(annotated(), "batch/v1", "Job", "set-workers-0")
		p.Labels = map[string]string{jobSetName: "set", jobSetPart: "workers"}
		return p
	}
	grouped := annotated()
	grouped.Labels = map[string]string{podGroup: "g"}
	inJob := above(annotated(), "batch/v1", "Job", "j")
	inJob.Labels = grouped.Labels
	noted := func(uid, partition string) map[string]any {
		return map[string]any{"metadata": map[string]any{"uid": uid, "annotations": map[string]any{"slurmjob.slinky.slurm.net/partition": partition}}}
	}
	for _, c := range []struct {
		name    string
		pod     *v1.Pod
		objects map[string]map[string]any
		gang    string
		size    int
		options string
	}{
		{"JobSet", pod(), set(replicated("leader", 1, 1), replicated("workers", 2, 2)), "JobSet ns/set/0", 5, "--partition=long"},
		{"JobSet in order", pod(), set(replicated("leader", 1, 1), replicated("workers", 2, 2, map[string]any{"name": "leader"})), "JobSet ns/set/0/workers", 4, "--partition=long"},
		{"JobSet of one pod", pod(), set(replicated("workers", 1, 1)), "", 0, "--partition=long"},
		{"PodGroup", grouped, map[string]map[string]any{"podgroups/g": {"spec": map[string]any{"minMember": int64(2)}}}, "PodGroup.scheduling.x-k8s.io ns/g", 2, ""},
		{"PodGroup that does not exist", grouped, nil, "", 0, ""},
		{"PodGroup beside a Job", inJob, map[string]map[string]any{"podgroups/g": noted("v", "group"), "jobs/j": noted("u", "job")}, "", 0, "--partition=group"},
		{"a new Job with the old name", inJob, map[string]map[string]any{"jobs/j": noted("v", "job")}, "", 0, ""},
	} {
		owners, err := Owners(t.Context(), made(c.objects), c.pod)
		got, problems := Of(c.pod, owners...)
		if options := strings.Join(got.Options, " "); err != nil || got.Gang != c.gang || got.GangSize != c.size || options != c.options || len(problems) > 0 {
			t.Errorf("%s: %+v, %v, %v", c.name, got, problems, err)
		}
	}
	broken := errors.New("broken")
	_, err := Owners(t.Context(), func(context.Context, Reference) (*unstructured.Unstructured, error) { return nil, broken }, pod())
	if want := "read Job ns/set-workers-0: broken"; !errors.Is(err, broken) || err.Error() != want {
		t.Errorf("%v", err)
	}
}
