package workload

import (
	"slices"
	"strings"
	"testing"
)

func TestEachImage(t *testing.T) {
	objects, err := Read([]string{"-"}, strings.NewReader(`
apiVersion: v1
kind: Pod
metadata: {name: pod}
spec:
  initContainers: [{name: first, image: "one:1"}]
  containers: [{name: main, image: "two:2"}, {name: none}]
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: cron}
spec:
  jobTemplate: {spec: {template: {spec: {containers: [{name: main, image: "three:3"}]}}}}
---
apiVersion: example.test/v1
kind: Training
metadata: {name: odd, annotations: {image: "not:this"}}
spec: {replicas: [{template: {spec: {containers: [{image: "four:4"}]}}}], image: "nor:this", containers: 3}
`))
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for range 2 {
		for _, object := range objects {
			object.EachImage(func(image string) string {
				seen = append(seen, image)
				return "new/" + image
			})
		}
	}
	slices.Sort(seen)
	want := []string{"four:4", "new/four:4", "new/one:1", "new/three:3", "new/two:2", "one:1", "three:3", "two:2"}
	if !slices.Equal(seen, want) {
		t.Errorf("images %q, want %q", seen, want)
	}
}
