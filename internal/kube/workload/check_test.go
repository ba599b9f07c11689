package workload

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const goodDeployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: web:1
        ports:
        - containerPort: 80
`

func TestManifestsAreCheckedWithoutACluster(t *testing.T) {
	replaced := func(old, with string) string { return strings.Replace(goodDeployment, old, with, 1) }
	job := "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  template:\n    spec:\n      restartPolicy: Never\n      containers:\n      - {name: main}\n"
	for _, c := range []struct{ manifest, want string }{
		{goodDeployment, ""},
		{job, ""},
		{"apiVersion: site.org/v1\nkind: Gizmo\nmetadata: {name: a}\nspec: {anything: true}\n", ""},
		{"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: a}\n", ""},
		{"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {a: b}\n", ""},
		{"apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: 'site:reader'}\n", ""},
		{replaced("image:", "imag:"), `f:11: Deployment web: unknown field "spec.template.spec.containers[0].imag"`},
		{"---\n# a\n---\n" + replaced("image:", "imag:"), `f:14: Deployment web: unknown field`},
		{replaced("80", "eighty"), `f:13: Deployment web: field "spec.template.spec.containers.ports.containerPort" must be a whole number, not a text`},
		{replaced("containerPort: 80", "containerPort: {}"), "must be a whole number, not an object"},
		{replaced("web:1", "5"), "must be a text (in quotes where it looks like a number), not a number"},
		{replaced("name: main", "name: Main_1"), `f:10: Deployment web: spec.template.spec.containers[0].name: Invalid value: "Main_1"`},
		{replaced("labels: {app: web}", "labels: {app: wep}"), `f:7: Deployment web: spec.template.metadata.labels: Invalid value: "app=wep": spec.selector does not choose these pods`},
		{replaced("name: web}", "name: web, labels: {a: 'b c'}}"), "f:3: Deployment web: metadata.labels: Invalid value"},
		{replaced("name: web}", "name: a/b}"), "f:3: Deployment a/b: metadata.name: Invalid value"},
		{replaced("apps/v1", "v1"), "f:1: Deployment web: v1 has no kind Deployment; it is in apps/v1"},
		{replaced("kind: Deployment", "kind: Deploymint"), "f:2: Deploymint web: apps/v1 has no kind Deploymint"},
		{replaced("apps/v1", "apps/v1beta2"), "f:1: Deployment web: Deployment of apps/v1beta2 was removed in Kubernetes 1.16; it is in apps/v1"},
		{strings.Replace(job, "Never", "Always", 1), `f:7: Job a: spec.template.spec.restartPolicy: Required value: a Job takes "OnFailure" or "Never"`},
		{job + "      - {name: main}\n", "f:10: Job a: spec.template.spec.containers[1].name: Duplicate value"},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {}\n", "f:4: Pod a: spec.containers: Required value"},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: [{name: a, resources: {limits: {memory: lots}}}]\n", "f:1: Pod a: quantities must match"},
		{"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: a}\n  spec: {nothing: 1}\n", `f:1: Pod a: unknown field "spec.nothing"`},
	} {
		objects, err := parse("f", []byte(c.manifest), io.Discard)
		if err != nil {
			t.Fatalf("%s\n%v", c.manifest, err)
		}
		err = Check(objects)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s\ngot  %v\nwant %s", c.manifest, err, c.want)
		}
	}
}

// TestCheckAcceptsWorkloadsThatRun checks every manifest of the examples and of the
// cases.
func TestCheckAcceptsWorkloadsThatRun(t *testing.T) {
	checked := 0
	for _, folder := range []string{"../../../examples", "../../../examples/*", "../../../test/ends", "../../../test/conformance"} {
		files, err := filepath.Glob(folder + "/*.yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := parse(file, content, io.Discard)
			if err != nil {
				continue // settings of something else
			}
			checked += len(objects)
			if err := Check(objects); err != nil {
				t.Error(err)
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d objects were checked", checked)
	}
}

// TestCheckKnowsTheVersion: the check knows which kinds the API server of this
// version has removed.
func TestCheckKnowsTheVersion(t *testing.T) {
	content, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("k8s.io/kubernetes v1.%d.", kubernetesMinor); !strings.Contains(string(content), want) {
		t.Errorf("go.mod does not require %s", want)
	}
}
