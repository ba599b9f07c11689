package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestObjectsOfSets(t *testing.T) {
	jobSet := `{"kind": "JobSet", "apiVersion": "jobset.x-k8s.io/v1alpha2", "metadata": {"name": "s", "namespace": "n", "uid": "u"}, "spec": {"replicatedJobs": [
		{"name": "first", "replicas": 1, "template": {"spec": {"template": {"spec": {}}}}},
		{"name": "then", "replicas": 2, "dependsOn": [{"name": "first", "status": "Complete"}], "template": {"spec": {"parallelism": 2, "template": {"spec": {}}}}}]}}`
	leaderWorkerSet := `{"kind": "LeaderWorkerSet", "metadata": {"name": "w", "namespace": "n"}, "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2}}}`
	workflow := `{"kind": "Workflow", "metadata": {"name": "f"}, "spec": {"entrypoint": "d", "templates": [
		{"name": "d", "dag": {"tasks": [{"name": "A", "template": "s"}, {"name": "B", "template": "c", "dependencies": ["A"]}]}},
		{"name": "s", "steps": [[{"name": "x", "template": "c"}], [{"name": "y", "template": "c"}]]},
		{"name": "c", "container": {"image": "i"}}]}}`
	for _, c := range []struct {
		object    string
		succeeded []string
		want      []string
	}{
		{jobSet, nil, []string{"s-first-0"}},
		{jobSet, []string{"first"}, []string{"s-then-0", "s-then-1"}},
		{leaderWorkerSet, nil, []string{"w-0", "w-0-1", "w-1", "w-1-1"}},
		{workflow, nil, []string{"f-a-0-x"}},
		{workflow, []string{"f-a-0-x"}, []string{"f-a-1-y"}},
		{workflow, []string{"f-a-0-x", "f-a-1-y"}, []string{"f-b"}},
		{workflow, []string{"f-a-0-x", "f-a-1-y", "f-b"}, nil},
	} {
		var text bytes.Buffer
		if err := run(strings.NewReader(c.object), &text, c.succeeded); err != nil {
			t.Fatal(err)
		}
		var list struct {
			Items []struct{ Metadata struct{ Name string } }
		}
		if err := json.Unmarshal(text.Bytes(), &list); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, item := range list.Items {
			names = append(names, item.Metadata.Name)
		}
		if !slices.Equal(names, c.want) {
			t.Errorf("got %v, want %v", names, c.want)
		}
	}
}
